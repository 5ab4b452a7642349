//! The records of a transcript: one type for each kind of body, and the one grammar that both writer and verifier use.
//!
//! [`Payload::decode`] reads the four fields that all records have; [`Body::from_item`] reads a body of a known type and refuses
//! whatever `docs/protocol/transcript.cddl` does not allow; [`Body::to_value`] writes it.

mod check;
mod configuration;
mod error;
mod events;
pub(crate) mod fields;
mod payload;
mod receipt;
mod root;
mod schema;
mod update;

pub use check::{CheckBody, Coordinate, Opening, Verdict};
pub use configuration::{Commit, Configuration, Durability, Evidence, Tolerance};
pub use error::{BodyError, BodyErrorKind};
pub use events::{
    ChallengeBody, CheckpointBody, CloseBody, CloseReason, EnvironmentBody, ProgramBody, ProgramRole, ResumeBody,
    StateBody, StateReason,
};
pub use payload::{Body, Payload, PayloadError, RecordType};
pub use receipt::{Receipt, ReceiptError};
pub use root::{Challenger, PROTOCOL_VERSION, Prover, RootBody, Schemes};
pub use schema::{BatchLayout, BatchLeaf, Leaf, Place, SchemaBody};
pub use update::{Edit, Overlap, Roots, Scalar, Tree, UpdateBody};
pub use zkdv_hash::challenge::Sampling;
