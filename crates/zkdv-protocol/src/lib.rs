//! Records, codec, signing, transcript writer and streaming verifier of ZKDV.
