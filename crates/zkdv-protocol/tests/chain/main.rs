//! An honest writer can't make an invalid transcript: what may not come next is refused, and nothing is lost by that.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

#[path = "../sample/mod.rs"]
mod sample;
mod whole_runs;

use sample::{
    Run, check, closed_run, configuration, digest, environment, key, program, root, roots, schema, state, update,
};
use whole_runs::verified;
use zkdv_hash::leaf;
use zkdv_protocol::chain::{Chain, ChainError, Counts};
use zkdv_protocol::cose::{Frame, Purpose};
use zkdv_protocol::key::{ExternalSigner, Signer};
use zkdv_protocol::reader::RecordReader;
use zkdv_protocol::record::{
    Body, ChallengeBody, CheckBody, CheckpointBody, CloseReason, Commit, Configuration, Edit, Payload, ProgramBody,
    ProgramRole, Receipt, RecordType, ResumeBody, RootBody, Roots, Sampling, StateBody, StateReason, Tree, UpdateBody,
    Verdict,
};
use zkdv_protocol::violation::Code;

/// Refused with a message that says this, and without a trace.
#[track_caller]
fn refused(run: &mut Run, body: Body, expected: &str) {
    let (head, length) = (run.chain.head(), run.bytes.len());
    let error = run.append(body).expect_err("a record that may not come next was taken");
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!((run.chain.head(), run.bytes.len()), (head, length));
}

fn with(run: &Run, index: u64, change: impl FnOnce(&mut UpdateBody)) -> Body {
    let mut update = update(&run.configuration, index);
    change(&mut update);
    Body::Update(update)
}

fn checkpoint() -> Body {
    Body::Checkpoint(CheckpointBody {
        update: 0,
        files: vec![("checkpoints/0.safetensors".to_owned(), digest("f"))],
    })
}

fn attest_program() -> Body {
    let Body::Program(attest) = program() else {
        unreachable!()
    };
    Body::Program(ProgramBody {
        role: ProgramRole::Attest,
        ..attest
    })
}

#[test]
fn an_attest_program_comes_once_after_the_schema_and_before_any_update() {
    let mut run = Run::start(root());
    run.append(environment()).unwrap();
    refused(
        &mut run,
        attest_program(),
        "a schema before a program with role `attest`",
    );
    let mut run = Run::ready(root());
    run.append(attest_program()).unwrap();
    refused(&mut run, attest_program(), "one program with role `attest`");
    let mut run = Run::ready(root());
    run.update(0);
    refused(&mut run, attest_program(), "before any update");
}

#[test]
fn a_check_carries_attested_values_where_an_attest_program_is_in_force_and_no_parameter_is_edited_with_its_bytes() {
    let mut run = Run::ready(sampling(Sampling::Probability(1.0)));
    run.append(attest_program()).unwrap();
    let edit = with(&run, 0, |update| {
        update.edits = vec![Edit {
            tree: Tree::Parameters,
            leaf: 1,
            digest: leaf::digest(&[0; 12]),
            value: Some(vec![0; 12]),
        }];
    });
    refused(
        &mut run,
        edit,
        "as an attest program is in force, but a state before the update",
    );
    let body = update(&run.configuration, 0);
    let digest = run.append(Body::Update(body)).unwrap();
    let draw = run.draw(0, &digest);
    let plain = check(&run.configuration, 0, draw);
    refused(&mut run, Body::Check(Box::new(plain)), "attested-missing");
}

fn sampling(sampling: Sampling) -> RootBody {
    let mut root = root();
    root.configuration.sampling = sampling;
    root
}

#[test]
fn records_are_chained_and_signed_by_the_key_in_force() {
    let run = closed_run();
    // The identity signs the root; a key that an update names signs from the next record on.
    let mut signer = key(1).public_key();
    for record in RecordReader::new(run.bytes.as_slice()) {
        let record = record.unwrap();
        let frame = record.frame().unwrap();
        frame
            .verify_strict(Purpose::Record, &signer.to_verifying_key().unwrap())
            .unwrap();
        let payload = Payload::decode(frame.payload).unwrap();
        match Body::from_item(payload.record_type().unwrap(), payload.body).unwrap() {
            Body::Root(body) => signer = body.session_key,
            Body::Update(body) => {
                assert_eq!(body.next_key.is_some(), (body.update + 1) % 4 == 0);
                signer = body.next_key.unwrap_or(signer);
            }
            _ => {}
        }
    }
    assert_eq!(signer, key(4).public_key(), "keys changed after updates 3 and 7");
}

#[test]
fn the_first_record_is_signed_by_the_identity_and_names_both_keys() {
    let (chain, sealed) = Chain::start(root(), &key(1), key(2)).unwrap();
    let frame = Frame::parse(sealed.bytes()).unwrap();
    let Body::Root(body) = Body::from_item(RecordType::Root, Payload::decode(frame.payload).unwrap().body).unwrap()
    else {
        panic!("no root")
    };
    assert_eq!(
        (body.identity, body.session_key),
        (key(1).public_key(), key(2).public_key())
    );
    assert_eq!(
        (chain.root(), chain.head(), chain.records()),
        (sealed.digest(), sealed.digest(), 1)
    );
    assert_eq!(sealed.digest(), leaf::digest(sealed.bytes()));
}

#[test]
fn environment_comes_directly_after_the_root_and_once() {
    let mut run = Run::start(root());
    for body in [
        Body::Schema(schema()),
        program(),
        checkpoint(),
        Body::Close(Counts::default().close(CloseReason::Finished)),
    ] {
        refused(&mut run, body, "`environment` once, directly after the root");
    }
    run.append(environment()).unwrap();
    refused(&mut run, environment(), "`environment` once");
}

#[test]
fn a_root_or_resume_is_never_appended() {
    let mut run = Run::ready(root());
    refused(&mut run, Body::Root(Box::new(root())), "a root only at the start");
    let session_key = key(9).public_key();
    let resume = ResumeBody {
        torn: 0,
        updates: 0,
        record: 4,
        offset: 0,
        linked: true,
        session_key,
        ranks: None,
    };
    refused(
        &mut run,
        Body::Resume(resume),
        "a resume only at the start of a session",
    );
}

#[test]
fn schema_program_and_start_come_before_update_0() {
    let mut run = Run::start(root());
    run.append(environment()).unwrap();
    refused(&mut run, state(0, StateReason::Start), "a schema before any state");
    refused(
        &mut run,
        Body::Update(update(&configuration(), 0)),
        "a schema and a state",
    );
    run.append(Body::Schema(schema())).unwrap();
    refused(&mut run, Body::Schema(schema()), "one schema");
    refused(
        &mut run,
        Body::Update(update(&configuration(), 0)),
        "a schema and a state",
    );
    refused(&mut run, state(0, StateReason::Close), "`start` first");
    refused(&mut run, state(1, StateReason::Start), "updates = 0");
    run.append(state(0, StateReason::Start)).unwrap();
    refused(&mut run, state(0, StateReason::Start), "one state with reason `start`");
    refused(&mut run, state(0, StateReason::Resume), "only after a resume");
    refused(
        &mut run,
        Body::Update(update(&configuration(), 0)),
        "`program` record with role `replay`",
    );
    run.append(attest_program()).unwrap();
    let attest_seq = run.chain.records() - 1;
    refused(&mut run, attest_program(), "one program with role `attest`");
    run.append(program()).unwrap();
    let replay_seq = run.chain.records() - 1;
    let update = |program| {
        Body::Update(UpdateBody {
            program,
            ..update(&configuration(), 0)
        })
    };
    refused(&mut run, update(attest_seq), "role `replay`");
    run.append(update(replay_seq)).unwrap();
}

#[test]
fn updates_follow_one_another() {
    let mut run = Run::ready(root());
    refused(&mut run, Body::Update(update(&configuration(), 1)), "update 0");
    run.update(0);
    refused(&mut run, Body::Update(update(&configuration(), 0)), "update 1");
}

#[test]
fn exactly_the_roots_that_are_due_are_there() {
    let mut run = Run::ready(root());
    let all = with(&run, 0, |update| update.after = roots(1));
    refused(&mut run, all, "no `optimizer` root");
    let none = with(&run, 0, |update| update.after.parameter_probes = None);
    refused(&mut run, none, "the `parameter-probes` root, which is due");
    (0..3).for_each(|index| run.update(index));
    let none = with(&run, 3, |update| update.after.optimizer_probes = None);
    refused(&mut run, none, "the `optimizer-probes` root, which is due");
    run.update(3);

    let mut every = root();
    every.configuration.commit = Commit::Every;
    let mut run = Run::ready(every);
    let none = with(&run, 0, |update| update.after.optimizer = None);
    refused(&mut run, none, "the `optimizer` root, which is due");
    run.update(0);
}

#[test]
fn a_next_key_is_handed_over_exactly_where_it_is_due() {
    let mut run = Run::ready(root());
    let body = |index| Body::Update(update(&configuration(), index));
    assert!(matches!(
        run.chain.seal(body(0), Some(key(9))),
        Err(ChainError::NextKey)
    ));
    (0..3).for_each(|index| run.update(index));
    assert!(matches!(run.chain.seal(body(3), None), Err(ChainError::NextKey)));
    // A key in the body is not the caller's to choose.
    let chosen = with(&run, 3, |update| update.next_key = Some(key(99).public_key()));
    let sealed = run.chain.seal(chosen, Some(key(3))).unwrap();
    let payload = Payload::decode(Frame::parse(sealed.bytes()).unwrap().payload).unwrap();
    let Body::Update(read) = Body::from_item(RecordType::Update, payload.body).unwrap() else {
        panic!()
    };
    assert_eq!(read.next_key, Some(key(3).public_key()));
}

#[test]
fn edits_fit_the_schema_and_their_bytes() {
    let mut run = Run::ready(sampling(Sampling::Probability(0.0)));
    let edit = |leaf, value: &[u8]| Edit {
        tree: Tree::Optimizer,
        leaf,
        digest: leaf::digest(value),
        value: Some(value.to_vec()),
    };
    let edited = |run: &Run, edits: Vec<Edit>| with(run, 0, |update| update.edits = edits);
    let body = edited(&run, vec![edit(2, &[0; 4])]);
    refused(&mut run, body, "a leaf that the schema has");
    let body = edited(&run, vec![edit(0, &[0; 3])]);
    refused(&mut run, body, "4 bytes");
    let body = edited(&run, vec![edit(0, &[0; 4]), edit(0, &[1; 4])]);
    refused(&mut run, body, "one edit of a leaf");
    let body = edited(
        &run,
        vec![Edit {
            digest: digest("other"),
            ..edit(0, &[0; 4])
        }],
    );
    refused(&mut run, body, "the digest of the bytes");
    let large = Edit {
        value: None,
        ..edit(1, &[])
    };
    let body = edited(&run, vec![large.clone()]);
    refused(&mut run, body, "a state with reason `edit` before");
    run.append(state(0, StateReason::Edit)).unwrap();
    let body = edited(&run, vec![edit(0, &[0; 4])]);
    refused(&mut run, body, "an edit that leaves out the leaf's bytes");
    let body = edited(&run, vec![large, edit(0, &[0; 4])]);
    run.append(body).unwrap();
    assert_eq!(run.chain.counts().edits, 2);
}

#[test]
fn a_state_for_edits_changes_no_tree_without_one() {
    let mut run = Run::ready(sampling(Sampling::Probability(0.0)));
    run.append(Body::State(StateBody {
        updates: 0,
        reason: StateReason::Edit,
        roots: Roots {
            parameters: Some(digest("other")),
            ..roots(0)
        },
    }))
    .unwrap();
    let edited = |run: &Run, tree| {
        with(run, 0, |update| {
            update.edits = vec![Edit {
                tree,
                leaf: 1,
                digest: digest("edited"),
                value: None,
            }];
        })
    };
    let body = edited(&run, Tree::Optimizer);
    refused(&mut run, body, "an edit of a leaf under the `parameters` root");
    let body = edited(&run, Tree::Parameters);
    run.append(body).unwrap();
}

#[test]
fn the_last_state_is_the_one_last_recorded() {
    let mut run = Run::ready(sampling(Sampling::Probability(0.0)));
    run.update(0);
    refused(&mut run, state(0, StateReason::Close), "updates = 1");
    let Body::State(mut body) = state(1, StateReason::Close) else {
        unreachable!()
    };
    body.roots.parameters = Some(digest("other"));
    refused(
        &mut run,
        Body::State(body.clone()),
        "the `parameters` root last recorded",
    );
    body.roots.parameters = None;
    refused(&mut run, Body::State(body.clone()), "all four roots");
    // The update left the optimizer's root out, so that it may be any.
    body.roots = roots(1);
    body.roots.optimizer = Some(digest("other"));
    run.append(Body::State(body)).unwrap();
}

#[test]
fn a_check_is_that_of_a_sampled_update() {
    let mut run = Run::ready(sampling(Sampling::Every(2)));
    let digest = run.append(Body::Update(update(&configuration(), 0))).unwrap();
    let draw = run.draw(0, &digest);
    refused(
        &mut run,
        Body::Check(Box::new(check(&configuration(), 0, draw))),
        "a sampled update that waits",
    );
    let digest = run.append(Body::Update(update(&configuration(), 1))).unwrap();
    let draw = run.draw(1, &digest);
    let good = check(&configuration(), 1, draw);
    let changed = |change: &dyn Fn(&mut CheckBody)| {
        let mut check = good.clone();
        change(&mut check);
        Body::Check(Box::new(check))
    };
    refused(&mut run, changed(&|check| check.snapshot = 2), "check-snapshot");
    refused(
        &mut run,
        changed(&|check| check.tolerance.relative = 1.0),
        "check-tolerance",
    );
    refused(
        &mut run,
        changed(&|check| check.parameter.as_mut().unwrap().index ^= 1),
        "check-coordinates: the parameter coordinate",
    );
    refused(
        &mut run,
        changed(&|check| check.optimizer = None),
        "check-coordinates: the optimizer coordinate",
    );
    refused(
        &mut run,
        changed(&|check| check.verdict = Verdict::Failed),
        "check-tolerance: an exact check passes",
    );
    run.append(changed(&|_| {})).unwrap();
    refused(&mut run, changed(&|_| {}), "a sampled update that waits");
    assert_eq!(
        run.chain.counts(),
        Counts {
            updates: 2,
            sampled: 1,
            passed: 1,
            failed: 0,
            edits: 0
        }
    );
}

#[test]
fn a_check_may_be_late_by_the_allowed_lag_and_no_more() {
    let mut run = Run::ready(sampling(Sampling::Every(1)));
    let mut checks = Vec::new();
    for index in 0..=8 {
        let digest = run.append(Body::Update(update(&configuration(), index))).unwrap();
        checks.push(check(&configuration(), index, run.draw(index, &digest)));
    }
    let next = Body::Update(update(&configuration(), 9));
    refused(
        &mut run,
        next,
        "the check of update 0, which may come at most 8 updates late",
    );
    run.append(Body::Check(Box::new(checks.remove(0)))).unwrap();
    run.append(Body::Update(update(&configuration(), 9))).unwrap();
    refused(&mut run, state(10, StateReason::Close), "the check of update 1");
}

#[test]
fn a_run_ends_once_everything_is_there() {
    let mut run = Run::ready(root());
    run.update(0);
    let close = |run: &Run| Body::Close(run.chain.counts().close(CloseReason::Finished));
    let body = close(&run);
    refused(&mut run, body, "a state with reason `close`");
    run.append(state(1, StateReason::Close)).unwrap();
    refused(
        &mut run,
        Body::Update(update(&configuration(), 1)),
        "`close` directly after the state",
    );
    let mut wrong = run.chain.counts();
    wrong.updates += 1;
    refused(&mut run, Body::Close(wrong.close(CloseReason::Finished)), "updates: 1");
    let body = close(&run);
    run.append(body).unwrap();
    assert!(run.chain.is_closed());
    refused(&mut run, checkpoint(), "nothing after `close`");
}

#[test]
fn a_poisoned_run_is_closed_wherever_it_stands() {
    let mut run = Run::ready(sampling(Sampling::Every(1)));
    run.append(Body::Update(update(&configuration(), 0))).unwrap();
    run.append(state(1, StateReason::Edit)).unwrap();
    let close = Body::Close(run.chain.counts().close(CloseReason::Poisoned));
    run.append(close).unwrap();
    let codes: Vec<_> = verified(&run, false)
        .violations
        .into_iter()
        .map(|violation| violation.code)
        .collect();
    assert_eq!(codes, [Code::ClosedPoisoned]);
}

#[test]
fn a_run_without_a_schema_is_closed_without_a_state() {
    let mut run = Run::start(root());
    run.append(environment()).unwrap();
    run.append(Body::Close(Counts::default().close(CloseReason::Finished)))
        .unwrap();
}

#[test]
fn a_challengers_receipts_decide_about_checks() {
    let challenger = key(50);
    let mut root = sampling(Sampling::Every(1));
    root.challenger.name = "remote".to_owned();
    root.challenger.key = Some(challenger.public_key());
    let mut run = Run::ready(root);
    let record = run.append(Body::Update(update(&configuration(), 0))).unwrap();
    let receipt = Receipt {
        root: run.chain.root(),
        seq: run.chain.records() - 1,
        record,
        randomness: [5; 32],
        time: 1,
    };
    let challenge = |update, receipt: &Receipt, signer: &dyn Signer| {
        Body::Challenge(ChallengeBody {
            update,
            receipt: receipt.seal(signer).unwrap(),
        })
    };
    refused(&mut run, state(1, StateReason::Close), "the challenge of update 0");
    refused(
        &mut run,
        challenge(1, &receipt, &challenger),
        "an update that waits for its challenge",
    );
    refused(
        &mut run,
        challenge(0, &receipt, &key(51)),
        "a receipt of the challenger",
    );
    refused(
        &mut run,
        challenge(0, &Receipt { seq: 3, ..receipt }, &challenger),
        "a receipt for record 5",
    );
    refused(
        &mut run,
        challenge(
            0,
            &Receipt {
                record: digest("x"),
                ..receipt
            },
            &challenger,
        ),
        "a receipt for record 5",
    );
    refused(
        &mut run,
        challenge(
            0,
            &Receipt {
                root: digest("x"),
                ..receipt
            },
            &challenger,
        ),
        "a receipt for this run",
    );
    let unchallenged = check(&configuration(), 0, run.draw(0, &record));
    refused(
        &mut run,
        Body::Check(Box::new(unchallenged.clone())),
        "a sampled update that waits",
    );
    run.append(challenge(0, &receipt, &challenger)).unwrap();
    refused(
        &mut run,
        challenge(0, &receipt, &challenger),
        "an update that waits for its challenge",
    );
    // The coordinates follow from the receipt's randomness, not from the record alone.
    refused(&mut run, Body::Check(Box::new(unchallenged)), "check-coordinates");
    let schema = schema();
    let sampling = run.configuration.sampling;
    let (parameters, optimizer) = (schema.parameter_elements(), schema.optimizer_elements());
    let draw = zkdv_hash::challenge::draw(&record, &[5; 32], &sampling, 0, parameters, optimizer).unwrap();
    run.append(Body::Check(Box::new(check(&configuration(), 0, draw))))
        .unwrap();
}

#[test]
fn receipts_have_no_place_without_a_challenger() {
    let mut run = Run::ready(root());
    let record = run.append(Body::Update(update(&configuration(), 0))).unwrap();
    let receipt = Receipt {
        root: run.chain.root(),
        seq: 5,
        record,
        randomness: [5; 32],
        time: 1,
    };
    let receipt = receipt.seal(&key(50)).unwrap();
    refused(
        &mut run,
        Body::Challenge(ChallengeBody { update: 0, receipt }),
        "no receipts",
    );
}

#[test]
fn a_receipt_may_be_as_late_as_updates_may_be_in_flight() {
    let challenger = key(50);
    let mut root = root();
    root.challenger.name = "remote".to_owned();
    root.challenger.key = Some(challenger.public_key());
    let mut run = Run::ready(root);
    for index in 0..=2 {
        run.append(Body::Update(update(&configuration(), index))).unwrap();
    }
    let next = Body::Update(update(&configuration(), 3));
    refused(
        &mut run,
        next,
        "the challenge of update 0, which may come at most 2 updates late",
    );
}

#[test]
fn a_checkpoint_is_of_an_update_that_was_reached() {
    let mut run = Run::ready(root());
    let checkpoint = |update| {
        Body::Checkpoint(CheckpointBody {
            update,
            files: vec![("checkpoints/x.safetensors".to_owned(), digest("f"))],
        })
    };
    refused(&mut run, checkpoint(1), "an update up to 0");
    run.append(checkpoint(0)).unwrap();
}

#[test]
fn a_check_that_is_not_exact_shows_its_values() {
    let mut run = Run::ready(sampling(Sampling::Every(1)));
    let digest = run.append(Body::Update(update(&configuration(), 0))).unwrap();
    let mut check = check(&configuration(), 0, run.draw(0, &digest));
    check.exact = false;
    check.verdict = Verdict::Failed;
    refused(&mut run, Body::Check(Box::new(check.clone())), "body-invalid");
    (check.distance, check.probes) = (Some(0.0), Some(true));
    refused(&mut run, Body::Check(Box::new(check.clone())), "check-tolerance");
    check.verdict = Verdict::Unresolved;
    run.append(Body::Check(Box::new(check))).unwrap();
    assert_eq!(run.chain.counts().failed, 0);
}

#[test]
fn programs_are_bounded_in_number() {
    let mut run = Run::ready(root());
    for _ in 1..4096 {
        run.append(program()).unwrap();
    }
    refused(&mut run, program(), "at most 4096 programs");
}

#[test]
fn a_record_that_would_be_too_large_is_refused() {
    let mut run = Run::ready(root());
    let Body::Program(body) = program() else { unreachable!() };
    let body = Body::Program(ProgramBody {
        convention: "x".repeat(16 << 20),
        ..body
    });
    refused(&mut run, body, "more than the 16777216");
}

#[test]
fn a_configuration_out_of_range_starts_nothing() {
    let configuration = Configuration {
        max_check_lag: 3,
        ..configuration()
    };
    let error = Chain::start(
        RootBody {
            configuration,
            ..root()
        },
        &key(1),
        key(2),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("body.configuration.max-check-lag: expected 8 to 8, got 3"),
        "{error}"
    );
}

#[test]
fn a_signer_that_fails_starts_nothing() {
    let signer = ExternalSigner::new(key(1).public_key(), |_| Err("the token is gone".into())).unwrap();
    assert!(matches!(
        Chain::start(root(), &signer, key(2)),
        Err(ChainError::Signer(_))
    ));
}
