//! Every input of the fuzzer's corpus, and the seeds that it grew from, keep the promises that the fuzzer looks at.

use std::fs;
use std::path::Path;

use zkdv_protocol::testing::targets;

#[test]
fn corpus_keeps_every_promise() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target, seeds) in targets::targets() {
        let mut inputs = 0;
        for entry in fs::read_dir(corpus.join(name)).expect("each target has a corpus") {
            target(&fs::read(entry.expect("the folder can be read").path()).expect("a file"));
            inputs += 1;
        }
        assert!(inputs >= seeds.len(), "{name}: {inputs} inputs; write the seeds again");
        for seed in &seeds {
            target(seed);
            // What an input is cut to, or goes on with, is as likely to be sent as the input itself.
            target(&seed[..seed.len() / 2]);
            target(&[&seed[..], seed].concat());
        }
    }
}
