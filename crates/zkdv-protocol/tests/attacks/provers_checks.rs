//! Cheats of a lying prover: its checks and its receipts.

use std::collections::BTreeSet;

use zkdv_hash::Digest;
use zkdv_protocol::cose;
use zkdv_protocol::record::{Body, CheckBody, Coordinate, Opening, Payload, RecordType, Sampling, Verdict};
use zkdv_protocol::report::Outcome;
use zkdv_protocol::testing::{CheckStyle, Ending, Settings, write_transcript};
use zkdv_protocol::violation::Code;

use crate::{assert_once, find, lie, lie_in, settings};

#[test]
fn checks_of_a_prover_who_does_not_check() {
    let dropped = |settings| {
        lie(settings, |body| match body {
            Body::Check(check) if check.update == 5 => vec![],
            Body::Close(mut close) => {
                close.passed -= 1;
                vec![Body::Close(close)]
            }
            body => vec![body],
        })
    };
    assert_once(Code::CheckMissing, &dropped(settings()));
    assert_once(
        Code::CheckMissing,
        &dropped(Settings {
            updates: 20,
            ending: Ending::Open,
            ..settings()
        }),
    );
    let late = |delay: u64| {
        let mut held = None;
        lie(
            Settings {
                updates: 30,
                ..settings()
            },
            move |body| match body {
                Body::Check(check) if check.update == 5 => {
                    held = Some(check);
                    vec![]
                }
                Body::Update(update) if update.update == 5 + delay + 1 => {
                    vec![Body::Check(held.take().expect("was held")), Body::Update(update)]
                }
                body => vec![body],
            },
        )
    };
    assert_eq!(late(8).verdict, Outcome::Passed);
    assert_once(Code::CheckLate, &late(9));
    assert_once(Code::CheckLate, &late(20));
    assert_once(
        Code::CheckDuplicate,
        &lie(settings(), |body| match body {
            Body::Check(check) if check.update == 5 => vec![Body::Check(check.clone()), Body::Check(check)],
            body => vec![body],
        }),
    );
    // Two of three updates are not sampled: a check of the one before is not asked for.
    assert_once(
        Code::CheckUnexpected,
        &lie(
            Settings {
                sampling: Sampling::Every(3),
                ..settings()
            },
            |body| match body {
                Body::Check(check) if check.update == 5 => {
                    let mut other = check.clone();
                    other.update = 4;
                    vec![Body::Check(check), Body::Check(other)]
                }
                body => vec![body],
            },
        ),
    );
}

#[test]
fn failed_checks_and_poisoned_runs_are_reported() {
    let failing = Settings {
        checks: CheckStyle::Failing,
        sampling: Sampling::Every(12),
        ..settings()
    };
    assert_once(Code::CheckFailed, &lie(failing.clone(), |body| vec![body]));
    assert_once(
        Code::CheckFailed,
        &lie(
            Settings {
                ending: Ending::Poisoned,
                ..failing
            },
            |body| vec![body],
        ),
    );
    assert_once(
        Code::ClosedPoisoned,
        &lie(
            Settings {
                ending: Ending::Poisoned,
                ..settings()
            },
            |body| vec![body],
        ),
    );
}

#[test]
fn receipts_of_a_prover_who_has_none() {
    let receipts = Settings {
        receipts: true,
        ..settings()
    };
    let drop_receipt = |settings| {
        lie(settings, |body| match body {
            Body::Challenge(challenge) if challenge.update == 5 => vec![],
            Body::Check(check) if check.update == 5 => vec![],
            body => vec![body],
        })
    };
    assert_once(Code::ChallengeMissing, &drop_receipt(receipts.clone()));
    assert_once(
        Code::ChallengeMissing,
        &drop_receipt(Settings {
            updates: 6,
            ..receipts.clone()
        }),
    );
    let twice = lie(receipts.clone(), |body| match body {
        Body::Challenge(challenge) if challenge.update == 5 => {
            vec![Body::Challenge(challenge.clone()), Body::Challenge(challenge)]
        }
        body => vec![body],
    });
    assert_once(Code::ChallengeUnexpected, &twice);
    let mut other = None;
    let exchanged = lie(receipts.clone(), |body| match body {
        Body::Challenge(mut challenge) => {
            if challenge.update == 4 {
                other = Some(challenge.receipt.clone());
            }
            if challenge.update == 5 {
                challenge.receipt = other.clone().expect("came before");
            }
            vec![Body::Challenge(challenge)]
        }
        body => vec![body],
    });
    assert_once(Code::ChallengeInvalid, &exchanged);
    for change in [
        (|receipt: &mut Vec<u8>| receipt.clear()) as fn(&mut Vec<u8>),
        |receipt| receipt[60] ^= 1,
        |receipt| *receipt.last_mut().expect("some") ^= 1,
        |receipt| receipt.push(0),
    ] {
        let report = lie_in(
            receipts.clone(),
            RecordType::Challenge,
            5,
            change!(Challenge, body => change(&mut body.receipt)),
        );
        assert_once(Code::ChallengeInvalid, &report);
    }
    // A challenger that gives none.
    let forge = write_transcript(&receipts);
    let index = find(&forge, RecordType::Challenge, 0);
    let frame = cose::Frame::parse(&forge.records[index]).expect("a record");
    let payload = Payload::decode(frame.payload).expect("a payload");
    let challenge = Body::from_item(RecordType::Challenge, payload.body).expect("a body");
    let unexpected = lie(settings(), |body| match body {
        Body::Update(update) if update.update == 3 => vec![Body::Update(update), challenge.clone()],
        body => vec![body],
    });
    assert_once(Code::ChallengeUnexpected, &unexpected);
}

/// Changes the check of update 7, a snapshot point, so that both trees have their roots.
pub(crate) fn assert_misstated(settings: &Settings, code: Code, changes: &[fn(&mut CheckBody)]) {
    for (number, change) in changes.iter().enumerate() {
        let report = lie_in(
            settings.clone(),
            RecordType::Check,
            7,
            change!(Check, body => change(body)),
        );
        let codes: BTreeSet<Code> = report.violations.iter().map(|violation| violation.code).collect();
        // Another verdict makes other counts, which the close record of this prover does not follow.
        let explained = BTreeSet::from([code, Code::CountMismatch]);
        assert!(
            codes.contains(&code) && codes.is_subset(&explained),
            "change {number}: {:#?}",
            report.violations
        );
    }
}

pub(crate) fn parameter(body: &mut CheckBody) -> &mut Coordinate {
    body.parameter.as_mut().expect("drawn")
}

pub(crate) fn before_opening(body: &mut CheckBody) -> &mut Opening {
    parameter(body).before_opening.as_mut().expect("opened")
}

fn opening(body: &mut CheckBody) -> &mut Opening {
    parameter(body).opening.as_mut().expect("opened")
}

#[test]
fn exact_checks_of_a_prover_who_misstates_them() {
    let exact = settings();
    assert_misstated(
        &exact,
        Code::CheckCoordinates,
        &[
            |body| parameter(body).index ^= 1,
            |body| parameter(body).index = u64::MAX,
            |body| body.optimizer = None,
        ],
    );
    assert_misstated(
        &exact,
        Code::CheckSnapshot,
        &[
            |body| body.snapshot = body.update + 1,
            |body| body.snapshot = body.update - 4,
            |body| body.snapshot = u64::MAX,
        ],
    );
    assert_misstated(
        &exact,
        Code::CheckTolerance,
        &[
            |body| body.tolerance.relative *= 2.0,
            |body| body.tolerance.absolute = f64::NAN,
            |body| body.verdict = Verdict::Failed,
            |body| body.verdict = Verdict::Unresolved,
        ],
    );
    assert_misstated(
        &exact,
        Code::BodyInvalid,
        &[
            |body| body.distance = Some(0.0),
            |body| body.probes = Some(true),
            |body| parameter(body).committed = Some(vec![0; 4]),
        ],
    );
}

/// Update 7 of these settings draws elements of leaves that are spread over devices.
fn sharded() -> Settings {
    Settings {
        checks: CheckStyle::Tolerant,
        sharded: true,
        ..settings()
    }
}

#[test]
fn checks_of_a_prover_who_misstates_shards() {
    let mut shards = vec![];
    let honest = lie(sharded(), |body| {
        if let Body::Check(check) = &body {
            let coordinates = [&check.parameter, &check.optimizer].into_iter().flatten();
            shards.extend(coordinates.filter_map(|found| Some((check.update, found.opening.as_ref()?.shards.len()))));
        }
        vec![body]
    });
    assert_eq!(honest.verdict, Outcome::Passed, "{:#?}", honest.violations);
    assert!(shards.contains(&(7, 3)), "{shards:?}");
    assert_misstated(
        &sharded(),
        Code::CheckOpening,
        &[
            |body| opening(body).shards.clear(),
            |body| opening(body).shards.reverse(),
            |body| opening(body).shards.rotate_left(1),
            |body| opening(body).shards.push(Digest::ZERO),
            |body| opening(body).shards.truncate(2),
            |body| opening(body).shards = vec![Digest::ZERO; 65_536],
            |body| opening(body).shards[0] = Digest::ZERO,
            |body| opening(body).shards[2] = Digest::ZERO,
            |body| opening(body).digest = opening(body).shards[0],
            |body| opening(body).chunk ^= 1,
            |body| opening(body).chunk = u64::MAX,
            |body| opening(body).bytes[0] ^= 1,
            |body| opening(body).bytes.truncate(1023),
            |body| opening(body).chain.push(Digest::ZERO),
            |body| opening(body).path.push(Digest::ZERO),
            |body| parameter(body).committed.as_mut().expect("given")[0] ^= 1,
        ],
    );
}

/// The schema says how a leaf is cut: with other ranges nothing leads to the same root.
#[test]
fn schemas_of_a_prover_who_misstates_shards() {
    for extents in [Some(vec![20, 15]), Some(vec![20, 13]), Some(vec![7, 30]), None] {
        let report = lie(sharded(), |body| match body {
            Body::Schema(mut schema) => {
                schema.parameters[0].sharding.clone_from(&extents);
                vec![Body::Schema(schema)]
            }
            body => vec![body],
        });
        let codes: BTreeSet<Code> = report.violations.iter().map(|violation| violation.code).collect();
        assert_eq!(codes, BTreeSet::from([Code::CheckOpening]), "{extents:?}");
    }
}

/// A leaf in one piece has no shards, whatever an opening says.
#[test]
fn shards_of_a_leaf_that_has_none() {
    let tolerant = Settings {
        sharded: false,
        ..sharded()
    };
    assert_misstated(
        &tolerant,
        Code::CheckOpening,
        &[
            |body| opening(body).shards.push(Digest::ZERO),
            |body| {
                let digest = opening(body).digest;
                opening(body).shards.push(digest);
            },
        ],
    );
}

#[test]
fn tolerant_checks_of_a_prover_who_misstates_them() {
    let tolerant = Settings {
        checks: CheckStyle::Tolerant,
        ..settings()
    };
    assert_misstated(
        &tolerant,
        Code::CheckTolerance,
        &[
            |body| body.verdict = Verdict::Failed,
            |body| body.probes = Some(false),
            |body| body.distance = Some(0.0),
            |body| body.distance = Some(f64::NAN),
            |body| parameter(body).replayed = Some(vec![0; 4]),
            |body| parameter(body).replayed = Some(f32::NAN.to_le_bytes().to_vec()),
            |body| body.verdict = Verdict::Unresolved,
            |body| *parameter(body) = Coordinate::bare(parameter(body).index),
        ],
    );
    assert_misstated(
        &tolerant,
        Code::CheckOpening,
        &[
            |body| parameter(body).opening = None,
            |body| body.optimizer.as_mut().expect("drawn").opening = None,
            |body| parameter(body).committed.as_mut().expect("given")[0] ^= 1,
            |body| parameter(body).committed = Some(vec![]),
            |body| parameter(body).committed = Some(vec![0; 16]),
            |body| parameter(body).replayed = Some(vec![0; 3]),
            |body| opening(body).digest = Digest::ZERO,
            |body| opening(body).chunk ^= 1,
            |body| opening(body).chunk = u64::MAX,
            |body| opening(body).bytes[0] ^= 1,
            |body| opening(body).bytes.truncate(1),
            |body| opening(body).bytes.clear(),
            |body| opening(body).path.clear(),
            |body| opening(body).path.push(Digest::ZERO),
            |body| opening(body).chain.clear(),
            |body| opening(body).chain.push(Digest::ZERO),
        ],
    );
    assert_misstated(
        &tolerant,
        Code::BodyInvalid,
        &[
            |body| body.probes = None,
            |body| body.distance = None,
            |body| body.exact = true,
            |body| parameter(body).replayed = None,
            |body| (parameter(body).committed, parameter(body).replayed) = (None, None),
        ],
    );
    let unresolved = Settings {
        checks: CheckStyle::Unresolved,
        ..settings()
    };
    assert_misstated(
        &unresolved,
        Code::BodyInvalid,
        &[|body| parameter(body).committed = Some(vec![0; 4])],
    );
    assert_misstated(
        &unresolved,
        Code::CheckTolerance,
        &[
            |body| body.verdict = Verdict::Passed,
            |body| body.verdict = Verdict::Failed,
            |body| body.probes = Some(false),
        ],
    );
}
