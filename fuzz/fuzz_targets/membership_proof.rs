#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zkdv_protocol::testing::targets::membership_proof(data));
