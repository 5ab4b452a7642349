//! Speed of commitments.
fn main() {}
