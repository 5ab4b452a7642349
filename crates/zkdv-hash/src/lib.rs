//! Digests, Merkle trees, rolling hashes and probes of ZKDV.
