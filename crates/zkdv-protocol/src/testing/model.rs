use zkdv_hash::sharding::Sharding;
use zkdv_hash::tree::{self, TreeKind};
use zkdv_hash::{Digest, Dtype, chunk, leaf};

use crate::record::{BatchLayout, Leaf, Opening, Roots, SchemaBody, Tree};

/// The state of a small model: enough kinds of leaves to meet every rule, with contents that follow from the updates.
#[derive(Clone, Debug)]
pub struct Model {
    parameters: Vec<Array>,
    optimizer: Vec<Array>,
}

#[derive(Clone, Debug)]
struct Array {
    name: &'static str,
    dtype: Dtype,
    shape: Vec<u64>,
    sharding: Option<Sharding>,
    bytes: Vec<u8>,
}

impl Array {
    fn new(name: &'static str, dtype: Dtype, shape: &[u64]) -> Self {
        let bytes = shape.iter().product::<u64>() as usize * dtype.size_bytes();
        Self {
            name,
            dtype,
            shape: shape.to_vec(),
            sharding: None,
            bytes: vec![0; bytes],
        }
    }

    fn sharded(mut self, extents: &[u64]) -> Self {
        self.sharding = Some(Sharding::new(&self.shape, extents).expect("extents of its shape"));
        self
    }

    fn shard_digests(&self) -> Vec<Digest> {
        let shards = self
            .sharding
            .as_ref()
            .map(|sharding| sharding.shard_digests(&self.bytes, self.dtype.size_bytes()));
        shards.map_or_else(Vec::new, |shards| shards.expect("as many bytes as the shape has"))
    }

    fn digest(&self) -> Digest {
        self.sharding.as_ref().map_or_else(
            || leaf::digest(&self.bytes),
            |sharding| sharding.digest(&self.shard_digests()).expect("all shards"),
        )
    }

    /// The bytes of the shard, or of the whole leaf, that holds an element, and the element's index in there.
    fn piece(&self, element: u64) -> (Vec<u8>, u64) {
        let Some(sharding) = &self.sharding else {
            return (self.bytes.clone(), element);
        };
        let place = sharding.locate(element).expect("the element is there");
        let ranges = sharding.ranges(place.shard).expect("the shard is there");
        let size = self.dtype.size_bytes();
        let inside = self.bytes.chunks(size).enumerate().filter(|(index, _)| {
            let mut rest = *index as u64;
            self.shape.iter().zip(&ranges).rev().all(|(extent, range)| {
                let position = rest % extent;
                rest /= extent;
                range.contains(&position)
            })
        });
        (
            inside.flat_map(|(_, element)| element.to_vec()).collect(),
            place.element,
        )
    }

    fn fill(&mut self, number: u64) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.name.as_bytes()).update(&number.to_le_bytes());
        hasher.finalize_xof().fill(&mut self.bytes);
        // Values near 1, so that tolerances mean something.
        if self.dtype == Dtype::Float32 {
            for value in self.bytes.as_chunks_mut::<4>().0 {
                let number = f32::from(u16::from_le_bytes([value[0], value[1]]));
                *value = (1.0 + number / 65536.0).to_le_bytes();
            }
        }
    }
}

impl Default for Model {
    fn default() -> Self {
        let mut model = Self {
            parameters: vec![
                Array::new("kernel", Dtype::Float32, &[20, 30]),
                Array::new("empty", Dtype::Float32, &[0, 4]),
                Array::new("bias", Dtype::Float32, &[5]),
            ],
            optimizer: vec![
                Array::new("count", Dtype::Int32, &[]),
                Array::new("moment", Dtype::Float32, &[20, 30]),
                Array::new("learning_rate", Dtype::Float32, &[]),
            ],
        };
        model.update(u64::MAX);
        model
    }
}

impl Model {
    /// A state with leaves that are spread over devices: in shards of more than a chunk, and in unequal ones.
    pub fn sharded() -> Self {
        let mut model = Self::default();
        let [kernel, moment] = [&mut model.parameters[0], &mut model.optimizer[1]];
        *kernel = kernel.clone().sharded(&[20, 14]);
        *moment = moment.clone().sharded(&[7, 30]);
        model
    }

    fn arrays(&self, tree: Tree) -> &[Array] {
        match tree {
            Tree::Parameters => &self.parameters,
            Tree::Optimizer => &self.optimizer,
        }
    }

    /// Takes the state to the one after this update.
    pub fn update(&mut self, update: u64) {
        for array in self.parameters.iter_mut().chain(&mut self.optimizer) {
            array.fill(update);
        }
    }

    /// Overwrites a leaf. Gives its new bytes.
    pub fn edit(&mut self, tree: Tree, index: usize) -> &[u8] {
        let array = match tree {
            Tree::Parameters => &mut self.parameters[index],
            Tree::Optimizer => &mut self.optimizer[index],
        };
        array.bytes.fill(0x11);
        &array.bytes
    }

    /// The schema record's body.
    pub fn schema(&self) -> SchemaBody {
        let leaves = |arrays: &[Array]| {
            arrays
                .iter()
                .map(|array| Leaf {
                    name: array.name.to_owned(),
                    dtype: array.dtype,
                    shape: array.shape.clone(),
                    aliases: vec![],
                    sharding: array.sharding.as_ref().map(|sharding| sharding.extents().to_vec()),
                })
                .collect()
        };
        SchemaBody {
            parameters: leaves(&self.parameters),
            optimizer: leaves(&self.optimizer),
            batch: BatchLayout {
                rows: 8,
                width: 65,
                leaves: vec![],
            },
            scalars: vec!["learning_rate".to_owned()],
        }
    }

    /// The roots of the state. Those of the probes stand for themselves: a verifier cannot look behind them.
    pub fn roots(&self, due: [bool; 4]) -> Roots {
        let root = |kind, tree| tree::root(kind, &self.digests(tree));
        Roots {
            parameters: due[0].then(|| root(TreeKind::Parameters, Tree::Parameters)),
            parameter_probes: due[1].then(|| root(TreeKind::ParameterProbes, Tree::Parameters)),
            optimizer: due[2].then(|| root(TreeKind::Optimizer, Tree::Optimizer)),
            optimizer_probes: due[3].then(|| root(TreeKind::OptimizerProbes, Tree::Optimizer)),
        }
    }

    fn digests(&self, tree: Tree) -> Vec<Digest> {
        self.arrays(tree).iter().map(Array::digest).collect()
    }

    /// How many elements all leaves of a tree have.
    pub fn elements(&self, tree: Tree) -> u64 {
        self.arrays(tree)
            .iter()
            .map(|array| array.shape.iter().product::<u64>())
            .sum()
    }

    /// The element at a coordinate and its opening.
    pub fn open(&self, tree: Tree, mut coordinate: u64) -> (Vec<u8>, Opening) {
        let arrays = self.arrays(tree);
        let mut index = 0;
        while coordinate >= arrays[index].shape.iter().product::<u64>() {
            coordinate -= arrays[index].shape.iter().product::<u64>();
            index += 1;
        }
        let array = &arrays[index];
        let size = array.dtype.size_bytes();
        let start = coordinate as usize * size;
        let kind = match tree {
            Tree::Parameters => TreeKind::Parameters,
            Tree::Optimizer => TreeKind::Optimizer,
        };
        let path = tree::open(kind, &self.digests(tree), index).expect("the leaf is there");
        let (bytes, element) = array.piece(coordinate);
        let chunk = element * size as u64 / chunk::CHUNK_BYTES as u64;
        let opened = chunk::open(&bytes, chunk).expect("the chunk is there");
        let opening = Opening {
            digest: array.digest(),
            path,
            shards: array.shard_digests(),
            chunk: opened.chunk,
            bytes: opened.bytes,
            chain: opened.chain,
        };
        (array.bytes[start..start + size].to_vec(), opening)
    }

    /// Whether the element at a coordinate is a float.
    pub fn is_float(&self, tree: Tree, mut coordinate: u64) -> bool {
        for array in self.arrays(tree) {
            let elements = array.shape.iter().product::<u64>();
            if coordinate < elements {
                return array.dtype == Dtype::Float32;
            }
            coordinate -= elements;
        }
        false
    }
}
