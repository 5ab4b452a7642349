//! The layout of the state, as far as coordinates and edits need it.

use zkdv_hash::sharding::Sharding;
use zkdv_hash::{Digest, Dtype, leaf};

use crate::record::{Leaf, SchemaBody, Tree};

/// Leaves of the state, and where each starts among all elements of its tree.
#[derive(Debug)]
pub(crate) struct Layout {
    parameters: TreeLayout,
    optimizer: TreeLayout,
}

#[derive(Debug)]
pub(crate) struct TreeLayout {
    leaves: Vec<LeafLayout>,
    elements: u64,
    form: Digest,
}

#[derive(Debug)]
pub(crate) struct LeafLayout {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    /// How it is spread over devices, if it is.
    pub(crate) sharding: Option<Sharding>,
    /// Index of its first element in the tree.
    start: u64,
    elements: u64,
}

/// One element of a tree.
#[derive(Debug)]
pub(crate) struct Located<'a> {
    pub(crate) leaf: &'a LeafLayout,
    /// Index of the leaf in its tree.
    pub(crate) leaf_index: u64,
    /// Index of the element in its leaf, in C order.
    pub(crate) element: u64,
}

impl Layout {
    pub(crate) fn new(schema: SchemaBody) -> Self {
        Self {
            parameters: TreeLayout::new(schema.parameters),
            optimizer: TreeLayout::new(schema.optimizer),
        }
    }

    pub(crate) fn tree(&self, tree: Tree) -> &TreeLayout {
        match tree {
            Tree::Parameters => &self.parameters,
            Tree::Optimizer => &self.optimizer,
        }
    }
}

impl TreeLayout {
    fn new(leaves: Vec<Leaf>) -> Self {
        let form = form(&leaves);
        let mut elements = 0;
        let leaves = leaves
            .into_iter()
            .map(|leaf| {
                let start = elements;
                // The grammar bounds the sum.
                elements += leaf.elements();
                LeafLayout {
                    elements: leaf.elements(),
                    name: leaf.name,
                    dtype: leaf.dtype,
                    // The grammar admits no others.
                    sharding: leaf
                        .sharding
                        .and_then(|extents| Sharding::new(&leaf.shape, &extents).ok()),
                    start,
                }
            })
            .collect();
        Self { leaves, elements, form }
    }

    /// Whether a state has the same roots in both: names apart, the same leaves.
    pub(crate) fn has_roots_of(&self, other: &Self) -> bool {
        self.form == other.form
    }

    /// How many elements all leaves have.
    pub(crate) fn elements(&self) -> u64 {
        self.elements
    }

    /// How many leaves there are.
    pub(crate) fn leaf_count(&self) -> u64 {
        self.leaves.len() as u64
    }

    pub(crate) fn leaf(&self, index: u64) -> Option<&LeafLayout> {
        self.leaves.get(usize::try_from(index).ok()?)
    }

    /// The element at a coordinate; none where there are not so many.
    pub(crate) fn locate(&self, coordinate: u64) -> Option<Located<'_>> {
        // Empty leaves share their start with the leaf after them, which is the one that is found.
        let index = self
            .leaves
            .partition_point(|leaf| leaf.start <= coordinate)
            .checked_sub(1)?;
        let leaf = &self.leaves[index];
        let element = coordinate - leaf.start;
        (element < leaf.elements).then_some(Located {
            leaf,
            leaf_index: index as u64,
            element,
        })
    }
}

/// A digest of what a tree's roots follow from beside the contents of its leaves.
fn form(leaves: &[Leaf]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    for leaf in leaves {
        add(leaf.dtype.name().as_bytes());
        let sizes = |sizes: &[u64]| sizes.iter().flat_map(|size| size.to_le_bytes()).collect::<Vec<_>>();
        add(&sizes(&leaf.shape));
        add(&[u8::from(leaf.sharding.is_some())]);
        add(&sizes(leaf.sharding.as_deref().unwrap_or_default()));
    }
    hasher.finalize().into()
}

impl LeafLayout {
    /// Its length in bytes; none where that does not fit 64 bits.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.elements.checked_mul(self.dtype.size_bytes() as u64)
    }

    /// The digest of the leaf with these bytes; none where it has another number of them.
    pub(crate) fn digest(&self, bytes: &[u8]) -> Option<Digest> {
        if self.bytes() != Some(bytes.len() as u64) {
            return None;
        }
        let Some(sharding) = &self.sharding else {
            return Some(leaf::digest(bytes));
        };
        let shards = sharding.shard_digests(bytes, self.dtype.size_bytes()).ok()?;
        sharding.digest(&shards).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::BatchLayout;

    fn layout(shapes: &[&[u64]]) -> Layout {
        let leaves = shapes
            .iter()
            .map(|shape| Leaf {
                name: format!("{shape:?}"),
                dtype: Dtype::Float32,
                shape: shape.to_vec(),
                aliases: vec![],
                sharding: None,
            })
            .collect();
        Layout::new(SchemaBody {
            parameters: leaves,
            optimizer: vec![],
            batch: BatchLayout {
                rows: 0,
                width: 0,
                leaves: vec![],
            },
            scalars: vec![],
        })
    }

    #[test]
    fn coordinates_count_elements_in_schema_order_past_empty_leaves() {
        let layout = layout(&[&[0], &[2, 3], &[4, 0], &[], &[0], &[1 << 40]]);
        let tree = layout.tree(Tree::Parameters);
        let place = |coordinate| tree.locate(coordinate).map(|found| (found.leaf_index, found.element));
        assert_eq!(place(0), Some((1, 0)));
        assert_eq!(place(5), Some((1, 5)));
        assert_eq!(place(6), Some((3, 0)));
        assert_eq!(place(7), Some((5, 0)));
        assert_eq!(place((1 << 40) + 6), Some((5, (1 << 40) - 1)));
        assert_eq!(place((1 << 40) + 7), None);
        assert_eq!(place(u64::MAX), None);
        assert_eq!(tree.elements(), (1 << 40) + 7);
        assert_eq!(tree.leaf_count(), 6);
    }

    #[test]
    fn an_empty_tree_has_no_coordinates() {
        let layout = layout(&[&[0], &[0, 7]]);
        assert!(layout.tree(Tree::Parameters).locate(0).is_none());
        assert!(layout.tree(Tree::Optimizer).locate(0).is_none());
    }
}
