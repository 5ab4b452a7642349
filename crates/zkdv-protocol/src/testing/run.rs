use std::collections::VecDeque;
use std::io::{self, Write};

use zkdv_hash::challenge::{self, Draw};
use zkdv_hash::{Digest, leaf};

use super::forge::{Forge, TestKey};
use super::model::Model;
use super::settings::{AttestStyle, CheckStyle, Ending, Settings};
use crate::cbor::{Key, Value};
use crate::record::{
    Body, ChallengeBody, Challenger, CheckBody, CheckpointBody, CloseBody, CloseReason, Commit, Coordinate, Edit,
    EnvironmentBody, Overlap, ProgramBody, ProgramRole, Prover, Receipt, ResumeBody, RootBody, Roots, Sampling, Scalar,
    Schemes, StateBody, StateReason, Tree, UpdateBody, Verdict,
};

/// The bytes of the one program of every simulated run, and of its attest program.
pub const PROGRAM: &[u8] = b"a replay program for tests";

/// A check that is due.
#[derive(Clone, Debug)]
struct Due {
    update: u64,
    draw: Draw,
    before: Model,
    model: Model,
    roots: Roots,
    at: u64,
}

/// What may change a body before it is signed: each body becomes the ones that are given.
pub type Tamper<'a> = &'a mut dyn FnMut(Body) -> Vec<Body>;

/// A simulated training run.
pub struct Run<'a> {
    settings: Settings,
    /// Signs and holds the records.
    pub forge: Forge,
    challenger: TestKey,
    tamper: Tamper<'a>,
    model: Model,
    root: Digest,
    program: u64,
    due: VecDeque<Due>,
    counts: CloseBody,
    /// Offset and `seq` of the record after each number of updates, with the model that stood there.
    standing: Vec<(u64, u64, Model)>,
    /// Updates that led to the present state.
    done: u64,
    /// Update records so far.
    records: u64,
    earliest_snapshot: u64,
}

/// Writes the transcript of an honest run. Gives its records.
pub fn write_transcript(settings: &Settings) -> Forge {
    let mut honest = |body| vec![body];
    let mut run = Run::new(settings.clone(), &mut honest);
    run.train();
    run.forge
}

impl<'a> Run<'a> {
    /// A run before its first record.
    pub fn new(settings: Settings, tamper: Tamper<'a>) -> Self {
        let model = if settings.sharded {
            Model::sharded()
        } else {
            Model::default()
        };
        Self {
            forge: Forge::new(settings.number),
            challenger: TestKey::new("challenger", settings.number),
            tamper,
            model,
            root: Digest::ZERO,
            program: 0,
            due: VecDeque::new(),
            counts: CloseBody {
                updates: 0,
                sampled: 0,
                passed: 0,
                failed: 0,
                edits: 0,
                reason: CloseReason::Finished,
            },
            standing: Vec::new(),
            done: 0,
            records: 0,
            earliest_snapshot: 0,
            settings,
        }
    }

    /// The name and content of the program's file.
    pub fn program_file(&self) -> (String, &'static [u8]) {
        (format!("{}.bin", leaf::digest(PROGRAM)), PROGRAM)
    }

    /// Trains to the end.
    pub fn train(&mut self) {
        self.start();
        let mut resume = self.settings.resume;
        let mut update = 0;
        while update < self.settings.updates {
            self.update(update);
            update += 1;
            if let Some(planned) = resume
                && planned.after == update
            {
                resume = None;
                update = planned.keep;
                self.resume(planned.keep);
            }
        }
        self.end();
    }

    /// Writes the records before the first update.
    pub fn start(&mut self) {
        let root = RootBody {
            prover: Prover::Jax,
            run: "test".to_owned(),
            time: 1_700_000_000_000,
            identity: self.forge.identity.public(),
            session_key: self.forge.session.public(),
            ranks: 1,
            challenger: if self.settings.receipts {
                Challenger {
                    name: "test".to_owned(),
                    key: Some(self.challenger.public()),
                }
            } else {
                Challenger {
                    name: Challenger::TRANSCRIPT.to_owned(),
                    key: None,
                }
            },
            schemes: Schemes::version_1(),
            configuration: self.settings.configuration(),
            parent: None,
        };
        self.root = self.write(Body::Root(Box::new(root)));
        self.write_environment();
        self.write(Body::Schema(self.model.schema()));
        self.program = self.forge.seq;
        self.write_program(ProgramRole::Replay);
        self.write_attest_program();
        self.write_state(StateReason::Start);
        self.stand();
    }

    fn write_program(&mut self, role: ProgramRole) {
        self.write(Body::Program(ProgramBody {
            role,
            format: "test".to_owned(),
            digest: leaf::digest(PROGRAM),
            length: PROGRAM.len() as u64,
            extension: "bin".to_owned(),
            text_digest: leaf::digest(b"text"),
            platforms: vec!["cpu".to_owned()],
            convention: "none".to_owned(),
        }));
    }

    fn write_attest_program(&mut self) {
        if self.settings.attest.is_some() {
            self.write_program(ProgramRole::Attest);
        }
    }

    fn write_environment(&mut self) {
        let entries = [
            ("framework", Value::from("test")),
            ("cpus", Value::from(2_u64)),
            (
                "flags",
                Value::Array(vec![Value::from(-1_i64), Value::from(f64::NAN), Value::from(true)]),
            ),
            ("nested", Value::map([("bytes", Value::from(&b"\x00\xff"[..]))])),
        ];
        let entries = entries
            .into_iter()
            .map(|(key, value)| (Key::from(key), value))
            .collect();
        self.write(Body::Environment(EnvironmentBody { entries }));
    }

    fn write_state(&mut self, reason: StateReason) {
        let roots = self.model.roots([true; 4]);
        self.write(Body::State(StateBody {
            updates: self.done,
            reason,
            roots,
        }));
    }

    /// Remembers where the present state is recorded.
    fn stand(&mut self) {
        let records = &self.forge.records;
        let offset = records.iter().rev().skip(1).map(Vec::len).sum::<usize>() as u64;
        self.standing.push((offset, self.forge.seq - 1, self.model.clone()));
    }

    /// Writes a body as the tamperer leaves it. Gives the digest of the last record of the same type, or of all.
    pub fn write(&mut self, body: Body) -> Digest {
        let record_type = body.record_type();
        let mut digest = None;
        for body in (self.tamper)(body) {
            let pushed = self.forge.push(&body);
            if body.record_type() == record_type {
                digest = Some(pushed);
            }
        }
        digest.unwrap_or(self.forge.prev)
    }

    fn update(&mut self, update: u64) {
        let edits = self.edits(update);
        self.counts.edits += edits.len() as u64;
        let before = self.model.clone();
        self.model.update(update);
        let configuration = self.settings.configuration();
        let after = self.model.roots(Roots::due(&configuration, update));
        let next_key = configuration
            .is_snapshot_point(update)
            .then(|| self.forge.next_session().public());
        let seq = self.forge.seq;
        let digest = self.write(Body::Update(UpdateBody {
            update,
            batch: leaf::digest(&update.to_le_bytes()),
            program: self.program,
            after,
            overlap: Overlap::Always,
            next_key,
            scalars: vec![("learning_rate".to_owned(), Scalar::Float(0.001))],
            edits,
            attached: None,
            inputs: None,
        }));
        self.counts.updates += 1;
        self.records += 1;
        self.done = update + 1;
        self.stand();
        let randomness = if self.settings.receipts {
            self.answer(update, seq, digest)
        } else {
            vec![]
        };
        self.sample(update, digest, &randomness, before, after);
        self.write_due(self.settings.check_delay);
    }

    fn edits(&mut self, update: u64) -> Vec<Edit> {
        let mut edits = Vec::new();
        if self.settings.small_edits.contains(&update) {
            let value = self.model.edit(Tree::Optimizer, 2).to_vec();
            edits.push(Edit {
                tree: Tree::Optimizer,
                leaf: 2,
                digest: leaf::digest(&value),
                value: Some(value),
            });
        }
        if self.settings.large_edits.contains(&update) {
            let digest = leaf::digest(self.model.edit(Tree::Parameters, 0));
            self.write_state(StateReason::Edit);
            self.earliest_snapshot = update;
            edits.push(Edit {
                tree: Tree::Parameters,
                leaf: 0,
                digest,
                value: None,
            });
        }
        edits
    }

    fn answer(&mut self, update: u64, seq: u64, digest: Digest) -> Vec<u8> {
        let randomness = *blake3::hash(&update.to_be_bytes()).as_bytes();
        let receipt = Receipt {
            root: self.root,
            seq,
            record: digest,
            randomness,
            time: 1,
        };
        let receipt = receipt.seal(&self.challenger).expect("a key in memory signs");
        self.write(Body::Challenge(ChallengeBody { update, receipt }));
        randomness.to_vec()
    }

    fn sample(&mut self, update: u64, digest: Digest, randomness: &[u8], before: Model, roots: Roots) {
        let sampling = match self.settings.sampling {
            Sampling::Probability(probability) => challenge::Sampling::Probability(probability),
            Sampling::Every(every) => challenge::Sampling::Every(every),
        };
        let [parameters, optimizer] = [Tree::Parameters, Tree::Optimizer].map(|tree| self.model.elements(tree));
        let draw =
            challenge::draw(&digest, randomness, &sampling, update, parameters, optimizer).expect("a valid rule");
        if draw.sampled {
            self.counts.sampled += 1;
            self.due.push_back(Due {
                update,
                draw,
                before,
                model: self.model.clone(),
                roots,
                at: self.records,
            });
        }
    }

    /// Writes the checks that are due longer than that.
    fn write_due(&mut self, delay: u64) {
        while self.due.front().is_some_and(|due| self.records - due.at >= delay) {
            let Some(due) = self.due.pop_front() else { break };
            let body = self.check(&due);
            match body.verdict {
                Verdict::Passed => self.counts.passed += 1,
                Verdict::Failed => self.counts.failed += 1,
                Verdict::Unresolved => {}
            }
            self.write(Body::Check(Box::new(body)));
        }
    }

    fn check(&self, due: &Due) -> CheckBody {
        let style = self.settings.checks;
        let mut distance = 0.0_f64;
        let mut coordinate = |tree: Tree, index: Option<u64>, root: Option<Digest>| {
            let mut coordinate = Coordinate::bare(index?);
            if matches!(style, CheckStyle::Tolerant | CheckStyle::Failing) {
                distance = distance.max(self.show(due, tree, root, &mut coordinate));
            }
            if let Some(attest) = self.settings.attest {
                Self::attest(due, tree, root, attest, style == CheckStyle::Exact, &mut coordinate);
            }
            Some(coordinate)
        };
        let parameter = coordinate(Tree::Parameters, due.draw.parameter, due.roots.parameters);
        let optimizer = coordinate(Tree::Optimizer, due.draw.optimizer, due.roots.optimizer);
        let disagrees = self.settings.attest == Some(AttestStyle::Disagreeing);
        CheckBody {
            update: due.update,
            snapshot: (due.update / self.settings.interval * self.settings.interval)
                .max(self.earliest_snapshot.min(due.update)),
            exact: style == CheckStyle::Exact,
            verdict: match style {
                CheckStyle::Unresolved => Verdict::Unresolved,
                CheckStyle::Exact | CheckStyle::Tolerant if !disagrees => Verdict::Passed,
                _ => Verdict::Failed,
            },
            tolerance: self.settings.configuration().tolerance,
            parameter,
            optimizer,
            distance: (style != CheckStyle::Exact).then_some(distance),
            probes: (style != CheckStyle::Exact).then_some(true),
        }
    }

    /// Adds the committed element and a replayed one. Gives how far they are apart.
    fn show(&self, due: &Due, tree: Tree, root: Option<Digest>, coordinate: &mut Coordinate) -> f64 {
        let mut distance = 0.0;
        let (committed, opening) = due.model.open(tree, coordinate.index);
        let mut replayed = committed.clone();
        if due.model.is_float(tree, coordinate.index) {
            let value = f32::from_le_bytes(committed[..].try_into().expect("four bytes"));
            let moved = if self.settings.checks == CheckStyle::Failing {
                value + 1.0
            } else {
                value + 1e-6
            };
            distance = (f64::from(moved) - f64::from(value)).abs();
            replayed = moved.to_le_bytes().to_vec();
        }
        (coordinate.committed, coordinate.replayed) = (Some(committed), Some(replayed));
        coordinate.opening = root.map(|_| opening);
        distance
    }

    /// Adds what the attest program gives.
    fn attest(
        due: &Due,
        tree: Tree,
        root: Option<Digest>,
        style: AttestStyle,
        exact: bool,
        coordinate: &mut Coordinate,
    ) {
        let (after, opening) = due.model.open(tree, coordinate.index);
        let number = |model: &Model, bytes: &[u8]| {
            let bytes = bytes.try_into().expect("four bytes");
            if model.is_float(tree, coordinate.index) {
                f64::from(f32::from_le_bytes(bytes))
            } else {
                f64::from(i32::from_le_bytes(bytes))
            }
        };
        let mut attested = number(&due.model, &after);
        if tree == Tree::Parameters {
            let (before, before_opening) = due.before.open(tree, coordinate.index);
            attested -= number(&due.before, &before);
            (coordinate.before, coordinate.before_opening) = (Some(before), Some(before_opening));
        }
        if style == AttestStyle::Disagreeing {
            attested = 2.0 * attested + 1.0;
        }
        coordinate.attested = Some(attested);
        if exact {
            coordinate.committed = Some(after);
            coordinate.opening = root.map(|_| opening);
        }
    }

    fn resume(&mut self, keep: u64) {
        // Checks of kept updates come before the interruption; abandoned ones lose theirs.
        self.due.retain(|due| due.update < keep);
        self.write_due(0);
        self.standing.truncate(keep as usize + 1);
        let (offset, record, model) = self.standing[keep as usize].clone();
        self.model = model;
        self.done = keep;
        let linked = keep == 0 || self.settings.commit == Commit::Every || keep.is_multiple_of(self.settings.interval);
        let session_key = self.forge.next_session().public();
        self.write(Body::Resume(ResumeBody {
            torn: 0,
            updates: keep,
            record,
            offset,
            linked,
            session_key,
            ranks: None,
        }));
        self.write_environment();
        self.write_attest_program();
        self.write_state(StateReason::Resume);
        self.earliest_snapshot = keep;
    }

    fn end(&mut self) {
        if self.settings.ending == Ending::Open {
            return;
        }
        self.write_due(0);
        let update = self.done;
        self.write(Body::Checkpoint(CheckpointBody {
            update,
            files: vec![(format!("checkpoints/{update}.safetensors"), leaf::digest(b"file"))],
        }));
        match self.settings.ending {
            Ending::Poisoned => self.counts.reason = CloseReason::Poisoned,
            _ => self.write_state(StateReason::Close),
        }
        self.write(Body::Close(self.counts));
    }
}

/// Streams the transcript of a run of many updates to a file: as [`Run`] does, with one state for all and without checks
/// but exact ones, so that the commitments are not what takes the time.
///
/// # Errors
/// Those of writing.
pub fn stream_transcript(settings: &Settings, mut out: impl Write) -> io::Result<()> {
    let mut honest = |body| vec![body];
    let mut run = Run::new(settings.clone(), &mut honest);
    run.start();
    let roots = [false, true].map(|optimizer| run.model.roots([true, true, optimizer, optimizer]));
    for update in 0..settings.updates {
        run.stream_update(update, &roots);
        for record in run.forge.records.drain(..) {
            out.write_all(&record)?;
        }
    }
    run.end();
    for record in run.forge.records.drain(..) {
        out.write_all(&record)?;
    }
    out.flush()
}

impl Run<'_> {
    fn stream_update(&mut self, update: u64, roots: &[Roots; 2]) {
        let configuration = self.settings.configuration();
        let after = roots[usize::from(Roots::due(&configuration, update)[2])];
        let next_key = configuration
            .is_snapshot_point(update)
            .then(|| self.forge.next_session().public());
        let digest = self.write(Body::Update(UpdateBody {
            update,
            batch: leaf::digest(&update.to_le_bytes()),
            program: self.program,
            after,
            overlap: Overlap::Always,
            next_key,
            scalars: vec![("learning_rate".to_owned(), Scalar::Float(0.001))],
            edits: vec![],
            attached: None,
            inputs: None,
        }));
        self.counts.updates += 1;
        self.records += 1;
        self.done = update + 1;
        let before = self.model.clone();
        self.sample(update, digest, &[], before, after);
        self.write_due(self.settings.check_delay);
    }
}
