//! What the chain takes is what the verifier finds sound.

use proptest::prelude::*;
use std::ops::ControlFlow;
use zkdv_hash::leaf;
use zkdv_protocol::record::{
    Body, CheckpointBody, CloseReason, Commit, Edit, RecordType, Sampling, StateReason, Tree, Verdict,
};
use zkdv_protocol::report::Report;
use zkdv_protocol::verify::{Options, verify};
use zkdv_protocol::violation::Code;

use crate::sample::{Run, check, closed_run, digest, environment, program, root, schema, state, update};
use crate::{attest_program, sampling, with};

/// Verifies the records of a run by themselves.
pub(crate) fn verified(run: &Run, allow_edits: bool) -> Report {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &run.bytes).unwrap();
    let options = Options {
        allow_edits,
        head: Some(run.chain.head()),
        ..Options::default()
    };
    verify(file.path(), &options, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

#[track_caller]
fn sound(run: &Run) {
    let report = verified(run, true);
    assert_eq!(report.violations, [], "{:?}", report.incomplete);
    assert_eq!(report.updates, run.chain.counts().updates);
    assert_eq!(report.sampled, run.chain.counts().sampled);
    assert_eq!(report.closed, run.chain.is_closed());
}

#[test]
fn what_is_made_here_verifies() {
    sound(&closed_run());
    sound(&Run::ready(root()));
    for probability in [0.0, 0.3, 1.0] {
        for commit in [Commit::Parameters, Commit::Every] {
            let mut root = sampling(Sampling::Probability(probability));
            root.configuration.commit = commit;
            let mut run = Run::ready(root);
            (0..20).for_each(|index| run.update(index));
            run.close();
            sound(&run);
        }
    }
}

#[test]
fn a_run_with_edits_and_late_checks_verifies() {
    let mut run = Run::ready(sampling(Sampling::Every(1)));
    let mut late = Vec::new();
    for index in 0..20 {
        if index % 7 == 3 {
            run.append(state(index, StateReason::Edit)).unwrap();
        }
        let mut body = update(&run.configuration, index);
        if index % 7 == 3 {
            body.edits = vec![Edit {
                tree: Tree::Parameters,
                leaf: 1,
                digest: digest("bias"),
                value: None,
            }];
        }
        if index % 5 == 1 {
            let value = vec![9; 4];
            body.edits.push(Edit {
                tree: Tree::Optimizer,
                leaf: 0,
                digest: leaf::digest(&value),
                value: Some(value),
            });
        }
        let record = run.append(Body::Update(body)).unwrap();
        let mut check = check(&run.configuration, index, run.draw(index, &record));
        check.snapshot = index;
        late.push(Body::Check(Box::new(check)));
        if late.len() > 8 {
            run.append(late.remove(0)).unwrap();
        }
    }
    for check in late {
        run.append(check).unwrap();
    }
    run.close();
    sound(&run);
    assert!(!verified(&run, false).violations.is_empty(), "edits are shown");
}

/// Bodies in any order and with any flaw: what the chain takes is what the verifier finds sound.
#[derive(Clone, Debug)]
enum Step {
    Program,
    AttestProgram,
    Schema,
    Environment,
    State(StateReason, u64),
    Update { edited: bool, complete: bool, skip: u64 },
    Check { update: u64, snapshot: u64, exact: bool },
    Checkpoint(u64),
    Close(CloseReason),
}

fn step() -> impl Strategy<Value = Step> {
    let reason = prop_oneof![
        Just(StateReason::Start),
        Just(StateReason::Edit),
        Just(StateReason::Close),
        Just(StateReason::Resume)
    ];
    prop_oneof![
        1 => Just(Step::Program),
        1 => Just(Step::AttestProgram),
        1 => Just(Step::Schema),
        1 => Just(Step::Environment),
        2 => (reason, 0_u64..2).prop_map(|(reason, ahead)| Step::State(reason, ahead)),
        12 => (any::<bool>(), 0_u8..8, 0_u64..10).prop_map(|(edited, complete, skip)| {
            Step::Update { edited, complete: complete > 0, skip: skip.saturating_sub(8) }
        }),
        8 => (0_u64..30, 0_u64..4, 0_u8..6).prop_map(|(update, snapshot, exact)| {
            Step::Check { update, snapshot, exact: exact > 0 }
        }),
        1 => (0_u64..30).prop_map(Step::Checkpoint),
        1 => prop_oneof![4 => Just(CloseReason::Finished), 1 => Just(CloseReason::Poisoned)].prop_map(Step::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_is_taken_verifies(ready in any::<bool>(), every in 1_u64..4, steps in proptest::collection::vec(step(), 0..80)) {
        let root = sampling(Sampling::Every(every));
        let mut run = if ready { Run::ready(root) } else { Run::start(root) };
        let mut digests = Vec::new();
        for step in steps {
            let updates = run.chain.counts().updates;
            let body = match step {
                Step::Program => program(),
                Step::AttestProgram => attest_program(),
                Step::Schema => Body::Schema(schema()),
                Step::Environment => environment(),
                Step::State(reason, ahead) => state(updates + ahead, reason),
                Step::Update { edited, complete, skip } => with(&run, updates + skip, |update| {
                    if edited {
                        update.edits = vec![Edit { tree: Tree::Parameters, leaf: 1, digest: digest("bias"), value: None }];
                    }
                    if !complete {
                        update.after.parameters = None;
                    }
                }),
                Step::Check { update, snapshot, exact } => {
                    let Some(record) = digests.get(usize::try_from(update).unwrap()) else { continue };
                    let mut check = check(&run.configuration, update, run.draw(update, record));
                    check.snapshot = update.saturating_sub(snapshot);
                    if !exact {
                        check.exact = false;
                        check.verdict = Verdict::Unresolved;
                    }
                    Body::Check(Box::new(check))
                }
                Step::Checkpoint(update) => {
                    Body::Checkpoint(CheckpointBody { update, files: vec![("x".to_owned(), digest("f"))] })
                }
                Step::Close(reason) => Body::Close(run.chain.counts().close(reason)),
            };
            let record_type = body.record_type();
            if let Ok(record) = run.append(body)
                && record_type == RecordType::Update
            {
                digests.push(record);
            }
        }
        let mut codes: Vec<_> = verified(&run, true).violations.into_iter().map(|violation| violation.code).collect();
        // That a run had failed is no fault of its transcript.
        codes.retain(|&code| code != Code::ClosedPoisoned);
        prop_assert_eq!(codes, []);
    }
}
