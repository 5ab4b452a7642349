//! The streaming verifier.
//!
//! ```text
//! file ── Framer ──> Frame ── Intake ──> Pending ── judge ──> Item ── Verifier ──> Report
//!         where        keys and            signatures,         order, chain, sampling,
//!         records are  decoding            on all cores        checks, counts
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `frame`, `wellformed` | cutting a file into records, and finding the next one after damage |
//! | `intake` | decoding, and which key must have signed |
//! | `verifier`, `content`, `updates`, `conclude` | the state machine: the line of records, what each type must say, the report |
//! | `linkage`, `order`, `ledger`, `layout`, `programs`, `boundaries` | its parts, each with a bound on its memory |
//! | `check`, `element`, `attested` | a check's openings and arithmetic |
//! | `lookup`, `folder` | what is looked up beside the stream, and where that is on disk |
//! | `pipeline` | the threads |
//!
//! The state machine reads no files, starts no threads and knows no clock. [`verify`] is the shell around it.

mod attested;
mod boundaries;
mod check;
mod conclude;
mod content;
mod element;
mod findings;
mod folder;
mod frame;
mod intake;
mod layout;
mod ledger;
mod linkage;
mod lookup;
mod options;
mod order;
mod pipeline;
mod programs;
mod updates;
mod verifier;
mod wellformed;

pub use attested::{Agreement, compare_delta, compare_value};
pub use folder::{Folder, UnreadableError};
pub use frame::{Bad, Content, Frame, Framer};
pub use intake::{Intake, Item, Pending};
pub use lookup::{Lookup, ProgramFile};
pub use options::{Level, Options, Requirement, RequirementError};
pub use pipeline::{Progress, VerifyError, verify};
pub use verifier::Verifier;

// The rules that the writing side applies before it signs.
pub(crate) use check::judge as judge_check;
pub(crate) use layout::Layout;
pub(crate) use ledger::Committed;
pub(crate) use order::Attestation;

/// The most resumes in a transcript. It bounds the places that are looked up again.
pub const MAX_RESUMES: u64 = 4096;
