//! The vectors that the reference writes (`reference/make_vectors.py`), and forgeries of what they open.
#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "vectors that cannot be read fail; most sums are exact"
)]

use std::str::FromStr;

use serde_json::Value;
use zkdv_hash::batch::{self, AbsenceOpening, BlockOpening, Matrix, RowOpening};
use zkdv_hash::challenge::{self, Sampling};
use zkdv_hash::probe::{self, ProbeOut, ProbedTree};
use zkdv_hash::rolling::{self, Base};
use zkdv_hash::sharding::{Located, Sharding};
use zkdv_hash::tree::{self, TreeKind};
use zkdv_hash::{Digest, Dtype, chunk, commit, leaf};

#[test]
fn plain_digests() {
    for vector in vectors("leaves", "plain") {
        assert_eq!(
            leaf::digest(&pattern(&vector["pattern"])),
            digest(&vector["digest"]),
            "{vector}"
        );
    }
}

#[test]
fn chunk_openings() {
    for vector in vectors("leaves", "chunks") {
        let bytes = pattern(&vector["pattern"]);
        let (length, index) = (bytes.len() as u64, integer(&vector["chunk"]));
        let opening = chunk::open(&bytes, index).unwrap();
        assert_eq!(opening.bytes.len() as u64, integer(&vector["bytes"]));
        assert_eq!(opening.chain, digests(&vector["chain"]));
        assert!(chunk::verify(
            &digest(&vector["digest"]),
            length,
            index,
            &opening.bytes,
            &opening.chain
        ));
    }
}

#[test]
fn sharded_leaves() {
    for vector in vectors("leaves", "sharded") {
        let sizes = |name: &str| list(&vector[name]).iter().map(number).collect::<Vec<u64>>();
        let sharding = Sharding::new(&sizes("shape"), &sizes("extents")).unwrap();
        let shards = list(&vector["shards"]);
        assert_eq!(sharding.count(), shards.len() as u64);
        for (index, shard) in (0..).zip(shards) {
            let ranges: Vec<(u64, u64)> = sharding
                .ranges(index)
                .unwrap()
                .iter()
                .map(|range| (range.start, range.end))
                .collect();
            let expected: Vec<(u64, u64)> = list(&shard["ranges"])
                .iter()
                .map(|range| (number(&range[0]), number(&range[1])))
                .collect();
            assert_eq!(ranges, expected, "{vector}");
        }
        let digests: Vec<Digest> = shards.iter().map(|shard| digest(&shard["digest"])).collect();
        assert_eq!(
            sharding.digest(&digests).unwrap(),
            digest(&vector["digest"]),
            "{vector}"
        );
        for place in list(&vector["elements"]) {
            let found = sharding.locate(number(&place["element"])).unwrap();
            let expected = Located {
                shard: integer(&place["shard"]),
                element: number(&place["inside"]),
            };
            assert_eq!(found, expected, "{vector}");
        }
        if vector["pattern"].is_u64() {
            let size = size(&vector["element_bytes"]);
            assert_eq!(
                sharding.shard_digests(&pattern(&vector["pattern"]), size).unwrap(),
                digests,
                "{vector}"
            );
        }
    }
}

#[test]
fn tree_roots() {
    for vector in vectors("trees", "roots") {
        let leaves: Vec<Vec<u8>> = list(&vector["leaves"]).iter().map(bytes).collect();
        assert_eq!(tree::root(kind(&vector), &leaves), digest(&vector["root"]), "{vector}");
    }
}

#[test]
fn tree_openings() {
    let roots = vectors("trees", "roots");
    for vector in vectors("trees", "openings") {
        let (count, index) = (integer(&vector["count"]), integer(&vector["index"]));
        let tree = roots.iter().find(|tree| tree["root"] == vector["root"]).unwrap();
        let leaves: Vec<Vec<u8>> = list(&tree["leaves"]).iter().map(bytes).collect();
        let path = digests(&vector["path"]);
        assert_eq!(
            tree::open(kind(&vector), &leaves, usize::try_from(index).unwrap()).unwrap(),
            path
        );
        let root = digest(&vector["root"]);
        assert!(tree::verify(
            kind(&vector),
            &root,
            count,
            index,
            &bytes(&vector["leaf"]),
            &path
        ));
    }
}

#[test]
fn rolling_bases_and_hashes() {
    for vector in vectors("batches", "bases") {
        assert_eq!(Base::from_root(&digest(&vector["root"])), base(&vector));
    }
    for vector in vectors("batches", "hashes") {
        assert_eq!(
            rolling::hash_window(&words(&vector["window"]), &base(&vector)),
            number::<u64>(&vector["hash"])
        );
    }
}

#[test]
fn batches() {
    for vector in vectors("batches", "batches") {
        let words = words(&vector["words"]);
        let matrix = Matrix::new(&words, size(&vector["rows"]), size(&vector["width"])).unwrap();
        let window = size(&vector["rolling_window"]);
        let found = batch::commit(&matrix, window, &base(&vector)).unwrap();
        assert_eq!(found.matrix, digest(&vector["matrix"]));
        assert_eq!(found.row_root, digest(&vector["row_root"]));
        assert_eq!(found.window_root, digest(&vector["window_root"]));
        assert_eq!(found.window_count, integer(&vector["window_count"]));
        assert_eq!(found.digest(), digest(&vector["digest"]));
        for opening in list(&vector["row_openings"]) {
            let row = size(&opening["row"]);
            let expected = RowOpening {
                row: row as u64,
                words: matrix.row(row).unwrap().to_vec(),
                path: digests(&opening["path"]),
            };
            assert_eq!(batch::open_row(&matrix, row).unwrap(), expected);
            assert!(batch::verify_row(&found.digest(), &found, &expected));
        }
        let absent = self::words(&vector["absent"]["window"]);
        let mut blocks = list(&vector["absent"]["blocks"]).iter().map(|opening| BlockOpening {
            block: integer(&opening["block"]),
            bytes: bytes(&opening["bytes"]),
            path: digests(&opening["path"]),
        });
        let expected = AbsenceOpening {
            lower: blocks.next().unwrap(),
            upper: blocks.next(),
        };
        assert_eq!(
            batch::open_absent(&matrix, window, &base(&vector), &absent).unwrap(),
            expected
        );
        assert!(batch::verify_absent(
            &found.digest(),
            &found,
            &base(&vector),
            &absent,
            &expected
        ));
    }
}

#[test]
fn counts_and_signs_of_probes() {
    for vector in vectors("probes", "kept") {
        let ratio = vector["ratio"].as_f64().unwrap();
        assert_eq!(
            probe::kept(number(&vector["dimension"]), ratio).unwrap(),
            number::<u64>(&vector["kept"]),
            "{vector}"
        );
    }
    for vector in vectors("probes", "signs") {
        let tree = ProbedTree::try_from(u8::try_from(integer(&vector["tree"])).unwrap()).unwrap();
        let signs = probe::signs(
            &digest(&vector["root"]),
            tree,
            integer(&vector["leaf"]),
            size(&vector["dimension"]),
        );
        let stream: Vec<u8> = signs.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(stream, bytes(&vector["signs"]));
    }
}

#[test]
fn probes() {
    let root = Digest::from(blake3::hash(b"root record"));
    for vector in vectors("probes", "probes") {
        let dtype: Dtype = text(&vector["dtype"]).parse().unwrap();
        let shape: Vec<u64> = list(&vector["shape"]).iter().map(integer).collect();
        let ratio = vector["ratio"].as_f64().unwrap();
        let length = usize::try_from(dtype.array_bytes(&shape).unwrap()).unwrap();
        let elements: Vec<u8> = bytes(&vector["period"]).into_iter().cycle().take(length).collect();
        assert_eq!(
            probe::sign_words(&shape, dtype).unwrap(),
            size(&vector["sign_words"]),
            "{vector}"
        );
        let columns = 32 * size(&vector["sign_words"]);
        let signs = probe::signs(&root, ProbedTree::Parameters, 0, columns);
        let count = probe::length(&shape, dtype, ratio).unwrap();
        let tolerance = vector["tolerance"].as_f64().unwrap();
        let (found, digest_found) = match vector["kind"].as_str() {
            Some("float64") => {
                let mut out = vec![f64::NAN; count];
                let own = commit::leaf(dtype, &elements, &shape, ratio, &signs, ProbeOut::F64(&mut out));
                (out, own)
            }
            kind => {
                let mut out = vec![f32::NAN; count];
                let out_or_none = if kind.is_some() {
                    ProbeOut::F32(&mut out)
                } else {
                    ProbeOut::None
                };
                let own = commit::leaf(dtype, &elements, &shape, ratio, &signs, out_or_none);
                (out.into_iter().map(f64::from).collect(), own)
            }
        };
        assert_eq!(digest_found.unwrap(), digest(&vector["digest"]));
        let expected = bytes(&vector["probe"]);
        let expected: Vec<f64> = if vector["kind"] == "float64" {
            expected
                .as_chunks()
                .0
                .iter()
                .map(|number| f64::from_le_bytes(*number))
                .collect()
        } else {
            expected
                .as_chunks()
                .0
                .iter()
                .map(|number| f32::from_le_bytes(*number).into())
                .collect()
        };
        assert_eq!(found.len(), expected.len());
        for (index, (a, b)) in found.iter().zip(&expected).enumerate() {
            let agree = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance;
            assert!(agree, "{dtype} {shape:?} {ratio}: number {index} is {a}, not {b}");
        }
    }
}

#[test]
fn draws() {
    for vector in vectors("challenges", "draws") {
        let sampling = match vector["sampling"]["every"].as_u64() {
            Some(every) => Sampling::Every(every),
            None => Sampling::Probability(vector["sampling"]["probability"].as_f64().unwrap()),
        };
        let (record, randomness) = (digest(&vector["record"]), bytes(&vector["randomness"]));
        let (parameters, optimizer) = (number(&vector["parameters"]), number(&vector["optimizer"]));
        let update = integer(&vector["update"]);
        let draw = challenge::draw(&record, &randomness, &sampling, update, parameters, optimizer).unwrap();
        assert_eq!(draw.sampled, vector["sampled"].as_bool().unwrap(), "{vector}");
        assert_eq!(
            draw.parameter.map(|coordinate| coordinate.to_string()).as_deref(),
            vector["parameter"].as_str()
        );
        let optimizer = draw.optimizer.map(|coordinate| coordinate.to_string());
        assert_eq!(optimizer.as_deref(), vector["optimizer_coordinate"].as_str());
    }
}

fn vectors(file: &str, part: &str) -> Vec<Value> {
    let path = format!("{}/../../tests/vectors/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let vectors = list(&file[part]).clone();
    assert!(!vectors.is_empty());
    vectors
}

/// So many bytes, of which byte `i` is `i mod 251`.
fn pattern(length: &Value) -> Vec<u8> {
    (0..=250).cycle().take(size(length)).collect()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn bytes(value: &Value) -> Vec<u8> {
    let (pairs, rest) = text(value).as_bytes().as_chunks::<2>();
    assert!(rest.is_empty());
    pairs
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn digest(value: &Value) -> Digest {
    text(value).parse().unwrap()
}

fn digests(value: &Value) -> Vec<Digest> {
    list(value).iter().map(digest).collect()
}

fn words(value: &Value) -> Vec<u32> {
    list(value)
        .iter()
        .map(|word| u32::try_from(integer(word)).unwrap())
        .collect()
}

fn integer(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn size(value: &Value) -> usize {
    usize::try_from(integer(value)).unwrap()
}

/// A number as decimal text.
fn number<T: FromStr<Err: std::fmt::Debug>>(value: &Value) -> T {
    text(value).parse().unwrap()
}

fn base(vector: &Value) -> Base {
    Base::from_value(number(&vector["base"])).unwrap()
}

fn kind(vector: &Value) -> TreeKind {
    text(&vector["kind"]).parse().unwrap()
}
