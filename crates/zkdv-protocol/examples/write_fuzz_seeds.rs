//! Writes the seeds of the fuzzer's corpus: `cargo run -p zkdv-protocol --features testing --example write_fuzz_seeds`.

use std::fs;
use std::io;
use std::path::Path;

use zkdv_protocol::testing::targets;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, _, seeds) in targets::targets() {
        let folder = corpus.join(name);
        fs::create_dir_all(&folder)?;
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number:02}")), seed)?;
        }
        println!("{name}: {} seeds", seeds.len());
    }
    Ok(())
}
