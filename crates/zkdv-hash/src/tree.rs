//! Merkle trees (scheme `zkdv-tree-1`).
//!
//! Leaves, inner nodes and roots of each kind of tree have derive-key contexts of their own, and the root binds the
//! number of leaves. Levels are paired from the left and a last odd node goes up as it is, so that the subtree to the
//! left of every node holds the largest power of two of leaves that leaves something to the right (the shape of
//! RFC 6962).

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::derive::Context;
use crate::{Digest, HashError, messages};

/// Ranges of fewer leaves are hashed by one thread: a handover costs as much as some dozen short leaves.
const PARALLEL_LEAVES: usize = 128;

/// What the leaves of a tree are; part of every context, so that no tree stands for one of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TreeKind {
    /// Digests of parameter leaves, in schema order.
    Parameters,
    /// Digests of optimizer leaves, in schema order.
    Optimizer,
    /// Digests of the probes of parameter leaves.
    ParameterProbes,
    /// Digests of the probes of optimizer leaves.
    OptimizerProbes,
    /// Digests of the rows of a batch.
    BatchRows,
    /// Blocks of the sorted hashes of a batch's windows.
    BatchWindows,
    /// Digests of attached leaves.
    Attached,
    /// Digests of further committed inputs.
    Inputs,
}

impl TreeKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Parameters,
        Self::Optimizer,
        Self::ParameterProbes,
        Self::OptimizerProbes,
        Self::BatchRows,
        Self::BatchWindows,
        Self::Attached,
        Self::Inputs,
    ];

    /// The name in records and contexts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Optimizer => "optimizer",
            Self::ParameterProbes => "parameter-probes",
            Self::OptimizerProbes => "optimizer-probes",
            Self::BatchRows => "batch-rows",
            Self::BatchWindows => "batch-windows",
            Self::Attached => "attached",
            Self::Inputs => "inputs",
        }
    }

    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    fn contexts(self) -> &'static Contexts {
        static CONTEXTS: LazyLock<[Contexts; TreeKind::ALL.len()]> = LazyLock::new(|| TreeKind::ALL.map(Contexts::new));
        &CONTEXTS[self as usize]
    }
}

impl fmt::Display for TreeKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for TreeKind {
    type Err = HashError;

    fn from_str(name: &str) -> Result<Self, HashError> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| HashError::TreeKind { name: name.to_owned() })
    }
}

/// The root over the data of `leaves`, which may be none.
pub fn root<T: AsRef<[u8]> + Sync>(kind: TreeKind, leaves: &[T]) -> Digest {
    root_of(kind, leaves.len(), &data_hasher(kind, leaves))
}

/// The opening of one leaf: its siblings from the bottom up, none at levels where its node was promoted.
///
/// # Errors
/// [`HashError::Index`] where there is no such leaf.
pub fn open<T: AsRef<[u8]> + Sync>(kind: TreeKind, leaves: &[T], index: usize) -> Result<Vec<Digest>, HashError> {
    open_of(kind, leaves.len(), index, &data_hasher(kind, leaves))
}

/// Whether `path` shows that leaf `index` of the `count` leaves under `root` has this data.
///
/// The path must be exactly as long as `count` and `index` call for.
pub fn verify(kind: TreeKind, root: &Digest, count: u64, index: u64, leaf_data: &[u8], path: &[Digest]) -> bool {
    if index >= count {
        return false;
    }
    let contexts = kind.contexts();
    let mut node = contexts.leaf.digest(leaf_data);
    let mut siblings = path.iter();
    for side in sides(count, index) {
        let Some(sibling) = siblings.next() else { return false };
        node = match side {
            Side::Left => contexts.inner(sibling, &node),
            Side::Right => contexts.inner(&node, sibling),
        };
    }
    siblings.next().is_none() && contexts.root(count, Some(&node)) == *root
}

/// The digest of a leaf's data in a tree of this kind: its node on level 0.
pub(crate) fn leaf_digest(kind: TreeKind, data: &[u8]) -> Digest {
    kind.contexts().leaf.digest(data)
}

/// The root over `count` leaves of which `leaf` gives the nodes on level 0.
pub(crate) fn root_of(kind: TreeKind, count: usize, leaf: &(impl Fn(usize) -> Digest + Sync)) -> Digest {
    let contexts = kind.contexts();
    let top = (count > 0).then(|| top(contexts, 0..count, leaf));
    contexts.root(count as u64, top.as_ref())
}

/// The root over leaves whose data `bytes` joins, each of this length, but for a last one that may be shorter.
pub(crate) fn root_of_equal(kind: TreeKind, bytes: &[u8], length: usize) -> Digest {
    let contexts = kind.contexts();
    let mut nodes = vec![[0; Digest::LENGTH]; bytes.len() / length];
    let (equal, shorter) = bytes.split_at(nodes.len() * length);
    messages::digests(contexts.leaf.mode(), equal, &mut nodes);
    if !shorter.is_empty() {
        nodes.push(contexts.leaf.digest(shorter).into());
    }
    let count = nodes.len() as u64;
    while nodes.len() > 1 {
        let (pairs, odd) = nodes.as_chunks::<2>();
        let mut above = vec![[0; Digest::LENGTH]; pairs.len()];
        messages::digests(contexts.node.mode(), pairs.as_flattened().as_flattened(), &mut above);
        above.extend(odd);
        nodes = above;
    }
    contexts.root(count, nodes.first().copied().map(Digest::from).as_ref())
}

/// The opening of one of `count` leaves of which `leaf` gives the nodes on level 0.
pub(crate) fn open_of(
    kind: TreeKind,
    count: usize,
    index: usize,
    leaf: &(impl Fn(usize) -> Digest + Sync),
) -> Result<Vec<Digest>, HashError> {
    if index >= count {
        return Err(HashError::Index {
            what: "leaf",
            index: index as u64,
            count: count as u64,
        });
    }
    let mut path = Vec::new();
    let mut range = 0..count;
    while range.len() > 1 {
        let middle = split(&range);
        let (inside, beside) = if index < middle {
            (range.start..middle, middle..range.end)
        } else {
            (middle..range.end, range.start..middle)
        };
        path.push(top(kind.contexts(), beside, leaf));
        range = inside;
    }
    path.reverse();
    Ok(path)
}

/// On which side the sibling stands at each level, from the bottom up, leaving out levels where a node is promoted.
pub(crate) fn sides(count: u64, index: u64) -> impl Iterator<Item = Side> {
    let mut level = (count, index);
    std::iter::from_fn(move || {
        while level.0 > 1 {
            let (count, index) = level;
            level = (count.div_ceil(2), index / 2);
            if index % 2 == 1 {
                return Some(Side::Left);
            }
            if index + 1 < count {
                return Some(Side::Right);
            }
        }
        None
    })
}

/// Where the sibling of a node stands.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Left,
    Right,
}

struct Contexts {
    leaf: Context,
    node: Context,
    root: Context,
}

impl Contexts {
    fn new(kind: TreeKind) -> Self {
        let context = |part| Context::new(&format!("zkdv 1 tree {kind} {part}"));
        Self {
            leaf: context("leaf"),
            node: context("node"),
            root: context("root"),
        }
    }

    fn inner(&self, left: &Digest, right: &Digest) -> Digest {
        let mut data = [0; 2 * Digest::LENGTH];
        data[..Digest::LENGTH].copy_from_slice(left.as_bytes());
        data[Digest::LENGTH..].copy_from_slice(right.as_bytes());
        self.node.digest(&data)
    }

    fn root(&self, count: u64, top: Option<&Digest>) -> Digest {
        let mut hasher = self.root.hasher();
        hasher.update(&count.to_le_bytes());
        if let Some(top) = top {
            hasher.update(top.as_bytes());
        }
        hasher.finalize().into()
    }
}

fn data_hasher<T: AsRef<[u8]> + Sync>(kind: TreeKind, leaves: &[T]) -> impl Fn(usize) -> Digest + Sync {
    move |index| leaf_digest(kind, leaves[index].as_ref())
}

/// The node above a range of at least one leaf.
fn top(contexts: &Contexts, range: Range<usize>, leaf: &(impl Fn(usize) -> Digest + Sync)) -> Digest {
    if range.len() == 1 {
        return leaf(range.start);
    }
    let middle = split(&range);
    let left = || top(contexts, range.start..middle, leaf);
    let right = || top(contexts, middle..range.end, leaf);
    let (left, right) = if range.len() > PARALLEL_LEAVES {
        rayon::join(left, right)
    } else {
        (left(), right())
    };
    contexts.inner(&left, &right)
}

/// Where a range of at least two leaves parts: after the largest power of two that leaves something to the right.
fn split(range: &Range<usize>) -> usize {
    range.start + (1 << (range.len() - 1).ilog2())
}
