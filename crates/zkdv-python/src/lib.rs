//! `zkdv._native`: the one native access point of the Python packages.
//!
//! Everything here converts, releases the GIL and maps errors; what is computed lives in `zkdv-hash` and `zkdv-protocol`.
//! The documentation of each function stands in `packages/zkdv-core/src/zkdv/_native.pyi`.
//!
//! | module | what it gives Python |
//! |---|---|
//! | [`commitments`] | digests, trees, openings, rolling bases, challenges |
//! | [`batch`] | commitments to batches and their openings |
//! | [`membership`] | proofs that words are in a committed batch or not |
//! | [`attested`] | values of an attest program against what was committed |
//! | [`probes`] | probes, and digest and probe of a leaf on the host |
//! | [`identity`], [`transcript`] | keys, and transcripts that are being written |
//! | [`reader`], [`verification`] | transcripts record by record, and verified |
//! | [`xla`] | the XLA custom call that commits inside a compiled training step |

mod argument;
mod attested;
mod batch;
mod buffer;
mod commitments;
mod errors;
mod floats;
mod identity;
mod membership;
mod pool;
mod probes;
mod reader;
mod transcript;
mod value;
mod verification;
mod xla;

#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;
    use pyo3::types::{PyDict, PyString};

    #[pymodule_export]
    use crate::attested::{attested_delta, attested_element};
    #[pymodule_export]
    use crate::batch::{BatchCommitment, batch_commit};
    #[pymodule_export]
    use crate::commitments::{
        chunk_open, chunk_verify, draw, leaf_digest, rolling_base, sharded_leaf_digest, sharding_locate,
        sharding_ranges, tree_open, tree_root, tree_verify,
    };
    #[pymodule_export]
    use crate::errors::{NativeError, TranscriptExistsError, TranscriptLockedError, TranscriptWriteError};
    #[pymodule_export]
    use crate::identity::Identity;
    #[pymodule_export]
    use crate::membership::MembershipProof;
    #[pymodule_export]
    use crate::probes::{commit_leaf, commit_leaves, probe_kept, probe_length, probe_sign_words, probe_signs};
    #[pymodule_export]
    use crate::reader::RecordReader;
    #[pymodule_export]
    use crate::transcript::Transcript;
    #[pymodule_export]
    use crate::verification::{verify, violation_codes};
    #[pymodule_export]
    use crate::xla::{xla_ffi_element_types, xla_ffi_handler, xla_ffi_layout};

    /// The names that the stub gives to types, for annotations that are evaluated.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        module.add("ReadRecord", py.get_type::<PyDict>())?;
        module.add("RecordType", py.get_type::<PyString>())?;
        module.add("TreeKind", py.get_type::<PyString>())
    }
}
