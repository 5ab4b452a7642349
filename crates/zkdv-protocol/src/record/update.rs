use super::configuration::{Commit, Configuration};
use super::error::BodyError;
use super::fields::{
    Fields, Parsed, bytes, digest, digest_value, list, named, non_empty, public_key, text_enum, unsigned,
};
use crate::cbor::{Item, Value};
use crate::key::PublicKey;
use crate::limits::{MAX_EDIT_VALUE_BYTES, MAX_LEAVES, MAX_SCALARS_BYTES};
use zkdv_hash::Digest;

/// One update.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateBody {
    /// Its index, counted from 0.
    pub update: u64,
    /// The digest of its batch.
    pub batch: Digest,
    /// The `seq` of the record of the program that ran.
    pub program: u64,
    /// The roots that are due, of the state after it.
    pub after: Roots,
    /// The overlap policy in force.
    pub overlap: Overlap,
    /// The key that signs from the next record on.
    pub next_key: Option<PublicKey>,
    /// Named values of interest; empty where there are none.
    pub scalars: Vec<(String, Scalar)>,
    /// State leaves that were changed by other means since the update before; empty where there are none.
    pub edits: Vec<Edit>,
    /// The root over attached leaves.
    pub attached: Option<Digest>,
    /// The root over further committed inputs.
    pub inputs: Option<Digest>,
}

/// Roots over the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// Over the parameters' leaves.
    pub parameters: Option<Digest>,
    /// Over the parameters' probes.
    pub parameter_probes: Option<Digest>,
    /// Over the optimizer's leaves.
    pub optimizer: Option<Digest>,
    /// Over the optimizer's probes.
    pub optimizer_probes: Option<Digest>,
}

/// How far updates may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Overlap {
    /// Not at all.
    Never = 0,
    /// Past updates that are not checked.
    Unchecked = 1,
    /// Always.
    Always = 2,
}

/// A number, a truth value or bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// An integer from 0 on.
    Unsigned(u64),
    /// The integer `-1 - n`.
    Negative(u64),
    /// A float.
    Float(f64),
    /// False or true.
    Bool(bool),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// A leaf that was changed other than by an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The tree that it belongs to.
    pub tree: Tree,
    /// Its index in the tree.
    pub leaf: u64,
    /// Its new digest.
    pub digest: Digest,
    /// Its new bytes, where they are few.
    pub value: Option<Vec<u8>>,
}

text_enum! {
    /// The trees of the state.
    Tree {
        /// The parameters.
        Parameters = "parameters",
        /// The optimizer state.
        Optimizer = "optimizer",
    }
}

impl UpdateBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let body = Self {
            update: fields.required("update", unsigned)?,
            batch: fields.required("batch", digest)?,
            program: fields.required("program", unsigned)?,
            after: fields.required("after", Roots::from_item)?,
            overlap: fields.required("overlap", Overlap::from_item)?,
            next_key: fields.optional("next-key", public_key)?,
            scalars: fields.optional("scalars", scalars)?.unwrap_or_default(),
            edits: fields
                .optional("edits", non_empty(list(2 * MAX_LEAVES, Edit::from_item)))?
                .unwrap_or_default(),
            attached: fields.optional("attached", digest)?,
            inputs: fields.optional("inputs", digest)?,
        };
        fields.finish(&[
            "update", "batch", "program", "after", "overlap", "next-key", "scalars", "edits", "attached", "inputs",
        ])?;
        Ok(body)
    }

    pub(super) fn to_value(&self) -> Value {
        Value::map([
            ("update", self.update.into()),
            ("batch", digest_value(&self.batch)),
            ("program", self.program.into()),
            ("after", self.after.to_value()),
            ("overlap", u64::from(self.overlap as u8).into()),
        ])
        .with("next-key", self.next_key)
        .with(
            "scalars",
            (!self.scalars.is_empty()).then(|| scalars_value(&self.scalars)),
        )
        .with(
            "edits",
            (!self.edits.is_empty()).then(|| Value::Array(self.edits.iter().map(Edit::to_value).collect())),
        )
        .with("attached", self.attached.as_ref().map(digest_value))
        .with("inputs", self.inputs.as_ref().map(digest_value))
    }

    /// Whether it lists an edit without the leaf's bytes, before which a `state` record is due.
    pub fn has_large_edit(&self) -> bool {
        self.edits.iter().any(|edit| edit.value.is_none())
    }

    /// The name of a root that its edits do not account for: one that differs between the state before them and the one
    /// that is recorded after them, though no leaf of its tree is edited.
    pub(crate) fn unedited_root_that_differs(&self, before: &Roots, edited: &Roots) -> Option<&'static str> {
        let trees = [Tree::Parameters, Tree::Parameters, Tree::Optimizer, Tree::Optimizer];
        let roots = before.entries().into_iter().zip(edited.entries()).zip(trees);
        let mut differing = roots.filter(|(((_, before), (_, edited)), tree)| {
            let known = before.is_some() && edited.is_some();
            known && before != edited && !self.edits.iter().any(|edit| edit.tree == *tree)
        });
        differing.next().map(|(((name, _), _), _)| name)
    }
}

impl Roots {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let roots = Self {
            parameters: fields.optional("parameters", digest)?,
            parameter_probes: fields.optional("parameter-probes", digest)?,
            optimizer: fields.optional("optimizer", digest)?,
            optimizer_probes: fields.optional("optimizer-probes", digest)?,
        };
        fields.finish(&["parameters", "parameter-probes", "optimizer", "optimizer-probes"])?;
        Ok(roots)
    }

    pub(super) fn to_value(self) -> Value {
        let [parameters, parameter_probes, optimizer, optimizer_probes] = self.entries();
        [parameters, parameter_probes, optimizer, optimizer_probes]
            .into_iter()
            .fold(Value::Map(std::collections::BTreeMap::new()), |value, (key, root)| {
                value.with(key, root.as_ref().map(digest_value))
            })
    }

    /// The four roots under their names.
    pub const fn entries(&self) -> [(&'static str, Option<Digest>); 4] {
        [
            ("parameters", self.parameters),
            ("parameter-probes", self.parameter_probes),
            ("optimizer", self.optimizer),
            ("optimizer-probes", self.optimizer_probes),
        ]
    }

    /// Which of [`Roots::entries`] an update's `after` must hold: exactly those.
    pub const fn due(configuration: &Configuration, update: u64) -> [bool; 4] {
        let optimizer = matches!(configuration.commit, Commit::Every) || configuration.is_snapshot_point(update);
        [true, true, optimizer, optimizer]
    }

    /// Which of [`Roots::entries`] are there.
    pub const fn present(&self) -> [bool; 4] {
        [
            self.parameters.is_some(),
            self.parameter_probes.is_some(),
            self.optimizer.is_some(),
            self.optimizer_probes.is_some(),
        ]
    }
}

impl Overlap {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        match item {
            Item::Unsigned(0) => Ok(Self::Never),
            Item::Unsigned(1) => Ok(Self::Unchecked),
            Item::Unsigned(2) => Ok(Self::Always),
            other => Err(BodyError::item("0, 1 or 2", &other)),
        }
    }
}

impl Scalar {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        match item {
            Item::Unsigned(number) => Ok(Self::Unsigned(number)),
            Item::Negative(number) => Ok(Self::Negative(number)),
            Item::Float(number) => Ok(Self::Float(number)),
            Item::Bool(value) => Ok(Self::Bool(value)),
            Item::Bytes(bytes) => Ok(Self::Bytes(bytes.to_vec())),
            other => Err(BodyError::item("a number, true, false or bytes", &other)),
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Unsigned(number) => Value::Unsigned(*number),
            Self::Negative(number) => Value::Negative(*number),
            Self::Float(number) => Value::Float(*number),
            Self::Bool(value) => Value::Bool(*value),
            Self::Bytes(bytes) => Value::Bytes(bytes.clone()),
        }
    }
}

fn scalars(item: Item<'_>) -> Parsed<Vec<(String, Scalar)>> {
    let scalars = named(MAX_SCALARS_BYTES, Scalar::from_item)(item)?;
    if scalars.is_empty() {
        return Err(BodyError::item("a map of at least one", &item));
    }
    let length = scalars_value(&scalars).encode().len();
    if length > MAX_SCALARS_BYTES {
        return Err(BodyError::new(
            format!("at most {MAX_SCALARS_BYTES} bytes when encoded"),
            format!("{length} bytes"),
        ));
    }
    Ok(scalars)
}

fn scalars_value(scalars: &[(String, Scalar)]) -> Value {
    Value::map(scalars.iter().map(|(name, scalar)| (name.as_str(), scalar.to_value())))
}

impl Edit {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let edit = Self {
            tree: fields.required("tree", Tree::from_item)?,
            leaf: fields.required("leaf", unsigned)?,
            digest: fields.required("digest", digest)?,
            value: fields.optional("value", bytes(MAX_EDIT_VALUE_BYTES))?,
        };
        fields.finish(&["tree", "leaf", "digest", "value"])?;
        Ok(edit)
    }

    fn to_value(&self) -> Value {
        Value::map([
            ("tree", self.tree.into()),
            ("leaf", self.leaf.into()),
            ("digest", digest_value(&self.digest)),
        ])
        .with("value", self.value.as_deref())
    }
}
