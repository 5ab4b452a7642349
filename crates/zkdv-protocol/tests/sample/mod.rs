//! Bodies and runs that are sound, for tests to start from.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses a part, and fails where it can't go on"
)]

use zeroize::Zeroizing;
use zkdv_hash::{Digest, Dtype, leaf};
use zkdv_protocol::cbor::{Key, Value};
use zkdv_protocol::chain::{Chain, ChainError, Sealed};
use zkdv_protocol::key::{PublicKey, SessionKey, Signer};
use zkdv_protocol::record::{
    BatchLayout, BatchLeaf, Body, ChallengeBody, Challenger, CheckBody, CheckpointBody, CloseReason, Commit,
    Configuration, Coordinate, Durability, Edit, EnvironmentBody, Evidence, Leaf, Opening, Overlap, Place, ProgramBody,
    ProgramRole, Prover, ResumeBody, RootBody, Roots, Sampling, Scalar, SchemaBody, Schemes, StateBody, StateReason,
    Tolerance, Tree, UpdateBody, Verdict,
};

pub fn digest(text: &str) -> Digest {
    leaf::digest(text.as_bytes())
}

pub fn key(number: u8) -> SessionKey {
    SessionKey::from_seed(&Zeroizing::new([number; 32]))
}

pub fn configuration() -> Configuration {
    Configuration {
        sampling: Sampling::Every(3),
        tolerance: Tolerance {
            absolute: 1e-6,
            relative: 1e-3,
        },
        commit: Commit::Parameters,
        durability: Durability::Interval,
        replay_snapshot_interval: 4,
        max_in_flight: 2,
        max_check_lag: 8,
        rolling_window: 32,
        probe_ratio: 0.01,
        evidence: Evidence {
            batches: false,
            components: false,
            sampled: true,
            checkpoint_interval: Some(100),
            keep: Some(3),
        },
    }
}

pub fn root() -> RootBody {
    RootBody {
        prover: Prover::Jax,
        run: "sample".to_owned(),
        time: 1_700_000_000_000,
        identity: PublicKey::from_bytes([0; 32]),
        session_key: PublicKey::from_bytes([0; 32]),
        ranks: 1,
        challenger: Challenger {
            name: Challenger::TRANSCRIPT.to_owned(),
            key: None,
        },
        schemes: Schemes::version_1(),
        configuration: configuration(),
        parent: None,
    }
}

/// The root as [`TranscriptFile::create`](zkdv_protocol::file::TranscriptFile::create) takes it.
pub fn root_without_keys(root: RootBody) -> Value {
    let Value::Map(mut entries) = Body::Root(Box::new(root)).to_value() else {
        unreachable!("a body is a map")
    };
    entries.retain(|key, _| !["identity", "session-key"].contains(&key.as_str()));
    Value::Map(entries)
}

pub fn environment() -> Body {
    let entries = [
        ("framework", Value::from("jax 0.9")),
        ("cpu-count", Value::from(8_u64)),
        ("offset", Value::from(-3_i64)),
        ("deterministic", Value::from(true)),
        ("clock-hertz", Value::from(2.5e9)),
        ("script", Value::from(digest("script").as_bytes().as_slice())),
        (
            "devices",
            Value::Array(vec!["cpu".into(), Value::map([("kind", Value::from("host"))])]),
        ),
    ];
    let entries = entries
        .into_iter()
        .map(|(key, value)| (Key::from(key), value))
        .collect();
    Body::Environment(EnvironmentBody { entries })
}

pub fn schema() -> SchemaBody {
    let leaf = |name: &str, dtype, shape: &[u64]| Leaf {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        aliases: Vec::new(),
        sharding: None,
    };
    let mut kernel = leaf("dense/kernel", Dtype::Float32, &[784, 128]);
    kernel.aliases = vec!["tied/kernel".to_owned()];
    kernel.sharding = Some(vec![196, 128]);
    SchemaBody {
        parameters: vec![kernel, leaf("dense/bias", Dtype::Float32, &[128])],
        optimizer: vec![
            leaf("count", Dtype::Int32, &[]),
            leaf("mu", Dtype::Float32, &[784, 128]),
        ],
        batch: BatchLayout {
            rows: 64,
            width: 785,
            leaves: vec![BatchLeaf {
                name: "image".to_owned(),
                dtype: "float32".to_owned(),
                shape: vec![64, 784],
                place: Place::Joined,
            }],
        },
        scalars: vec!["learning_rate".to_owned(), "loss_scale".to_owned(), "key".to_owned()],
    }
}

pub fn program() -> Body {
    Body::Program(ProgramBody {
        role: ProgramRole::Replay,
        format: "jax-export".to_owned(),
        digest: digest("program"),
        length: 12_345,
        extension: "bin".to_owned(),
        text_digest: digest("text"),
        platforms: vec!["cpu".to_owned()],
        convention: "params, opt_state, batch -> deltas, params, opt_state".to_owned(),
    })
}

pub fn roots(update: u64) -> Roots {
    Roots {
        parameters: Some(digest(&format!("parameters {update}"))),
        parameter_probes: Some(digest(&format!("parameter probes {update}"))),
        optimizer: Some(digest(&format!("optimizer {update}"))),
        optimizer_probes: Some(digest(&format!("optimizer probes {update}"))),
    }
}

pub fn state(updates: u64, reason: StateReason) -> Body {
    Body::State(StateBody {
        updates,
        reason,
        roots: roots(updates),
    })
}

pub fn update(configuration: &Configuration, update: u64) -> UpdateBody {
    let all = roots(update + 1);
    let [_, _, optimizer, optimizer_probes] = Roots::due(configuration, update);
    UpdateBody {
        update,
        batch: digest(&format!("batch {update}")),
        program: 3,
        after: Roots {
            optimizer: all.optimizer.filter(|_| optimizer),
            optimizer_probes: all.optimizer_probes.filter(|_| optimizer_probes),
            ..all
        },
        overlap: Overlap::Unchecked,
        next_key: None,
        scalars: vec![
            ("key".to_owned(), Scalar::Bytes(vec![7; 8])),
            ("loss_scale".to_owned(), Scalar::Float(1.0)),
            ("learning_rate".to_owned(), Scalar::Float(3.1e-4)),
        ],
        edits: Vec::new(),
        attached: None,
        inputs: None,
    }
}

pub fn check(configuration: &Configuration, update: u64, draw: zkdv_hash::challenge::Draw) -> CheckBody {
    CheckBody {
        update,
        snapshot: update - update % configuration.replay_snapshot_interval,
        exact: true,
        verdict: Verdict::Passed,
        tolerance: configuration.tolerance,
        parameter: draw.parameter.map(Coordinate::bare),
        optimizer: draw.optimizer.map(Coordinate::bare),
        distance: None,
        probes: None,
    }
}

/// A run in memory.
pub struct Run {
    pub chain: Chain,
    pub configuration: Configuration,
    pub bytes: Vec<u8>,
    keys: u8,
}

impl Run {
    pub fn start(root: RootBody) -> Self {
        let configuration = root.configuration.clone();
        let (chain, sealed) = Chain::start(root, &key(1), key(2)).unwrap();
        Self {
            chain,
            configuration,
            bytes: sealed.bytes().to_vec(),
            keys: 2,
        }
    }

    /// A run that is ready for update 0.
    pub fn ready(root: RootBody) -> Self {
        let mut run = Self::start(root);
        for body in [
            environment(),
            Body::Schema(schema()),
            program(),
            state(0, StateReason::Start),
        ] {
            run.append(body).unwrap();
        }
        run
    }

    pub fn append(&mut self, body: Body) -> Result<Digest, ChainError> {
        let next_key = self.chain.next_key_is_due(&body).then(|| {
            self.keys += 1;
            key(self.keys)
        });
        let sealed = self.chain.seal(body, next_key)?;
        Ok(self.take(sealed))
    }

    pub fn take(&mut self, sealed: Sealed) -> Digest {
        let digest = sealed.digest();
        self.bytes.extend_from_slice(sealed.bytes());
        self.chain.advance(sealed);
        digest
    }

    /// Appends an update and, where it is sampled, its check.
    pub fn update(&mut self, index: u64) {
        let digest = self.append(Body::Update(update(&self.configuration, index))).unwrap();
        let draw = self.draw(index, &digest);
        if draw.sampled {
            self.append(Body::Check(Box::new(check(&self.configuration, index, draw))))
                .unwrap();
        }
    }

    pub fn draw(&self, index: u64, digest: &Digest) -> zkdv_hash::challenge::Draw {
        let schema = schema();
        let (parameters, optimizer) = (schema.parameter_elements(), schema.optimizer_elements());
        zkdv_hash::challenge::draw(digest, &[], &self.configuration.sampling, index, parameters, optimizer).unwrap()
    }

    pub fn close(&mut self) {
        self.append(state(self.chain.counts().updates, StateReason::Close))
            .unwrap();
        self.append(Body::Close(self.chain.counts().close(CloseReason::Finished)))
            .unwrap();
    }
}

/// A closed run of ten updates, some of them checked, with keys that change twice.
pub fn closed_run() -> Run {
    let mut run = Run::ready(root());
    (0..10).for_each(|index| run.update(index));
    run.close();
    run
}

/// The verifying key of a signer.
pub fn verifying_key(signer: &dyn Signer) -> ed25519_dalek::VerifyingKey {
    signer.public_key().to_verifying_key().unwrap()
}

/// One body of each type, with everything in it that may be there.
pub fn full_bodies() -> Vec<Body> {
    let mut root = root();
    root.parent = Some(digest("parent"));
    "remote".clone_into(&mut root.challenger.name);
    root.challenger.key = Some(key(9).public_key());
    let mut schema = schema();
    schema.optimizer[0].aliases = vec!["step".to_owned()];
    schema.optimizer[0].shape = vec![7];
    schema.optimizer[0].sharding = Some(vec![2]);
    let mut update = update(&configuration(), 3);
    update.next_key = Some(key(4).public_key());
    update.attached = Some(digest("attached"));
    update.inputs = Some(digest("inputs"));
    update.edits = vec![
        Edit {
            tree: Tree::Optimizer,
            leaf: 0,
            digest: digest("count"),
            value: Some(vec![1, 2, 3, 4]),
        },
        Edit {
            tree: Tree::Parameters,
            leaf: 0,
            digest: digest("kernel"),
            value: None,
        },
    ];
    let opening = Opening {
        digest: digest("leaf"),
        path: vec![digest("a")],
        shards: vec![digest("first"), digest("second")],
        chunk: 3,
        bytes: vec![0; 1024],
        chain: vec![digest("b")],
    };
    let coordinate = Coordinate {
        index: 17,
        committed: Some(vec![0; 4]),
        replayed: Some(vec![1; 4]),
        opening: Some(opening.clone()),
        attested: Some(-0.25),
        before: Some(vec![2; 4]),
        before_opening: Some(opening),
    };
    let check = CheckBody {
        update: 3,
        snapshot: 0,
        exact: false,
        verdict: Verdict::Failed,
        tolerance: configuration().tolerance,
        parameter: Some(coordinate.clone()),
        optimizer: Some(coordinate),
        distance: Some(0.5),
        probes: Some(false),
    };
    let resume = ResumeBody {
        torn: 12,
        updates: 3,
        record: 9,
        offset: 4000,
        linked: true,
        session_key: key(5).public_key(),
        ranks: Some(2),
    };
    let files = vec![
        ("batches/0".to_owned(), digest("file")),
        (format!("batches/{}.safetensors", digest("b")), digest("c")),
    ];
    let counts = zkdv_protocol::chain::Counts {
        updates: 9,
        sampled: 3,
        passed: 2,
        failed: 1,
        edits: 0,
    };
    vec![
        Body::Root(Box::new(root)),
        environment(),
        Body::Schema(schema),
        program(),
        state(0, StateReason::Start),
        Body::Update(update),
        Body::Challenge(ChallengeBody {
            update: 3,
            receipt: vec![1, 2, 3],
        }),
        Body::Check(Box::new(check)),
        Body::Checkpoint(CheckpointBody { update: 4, files }),
        Body::Resume(resume),
        Body::Close(counts.close(CloseReason::Poisoned)),
    ]
}
