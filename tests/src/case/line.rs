//! The one-line text form of a case: `op(name=value,...)`, defaults left out.

use msa_core::error::{Error, Result};
use msa_core::text::{Leaf, Node, Visitor};

use super::Case;

impl Case {
    /// Names of the fields that differ from the defaults, lengths, heads, dims, sizes and seed apart.
    pub fn choices_made(&self) -> Vec<String> {
        const SIZES: [&str; 10] = ["hq", "hkv", "hi", "d", "di", "block", "page", "k", "len", "seed"];
        let names = different(&mut self.clone(), &mut Self::new(self.op)).map(|(name, _)| name);
        names.filter(|name| !SIZES.contains(&name.as_str())).collect()
    }

    /// The case with the field `name` as it is by default.
    pub fn with_default(&self, name: &str) -> Self {
        let mut case = self.clone();
        reset(name, &mut case, &mut Self::new(self.op));
        case
    }
}

/// `head(name=value,...)` of every leaf of `node` that differs from `default`.
pub(super) fn print(head: &str, node: &mut dyn Node, default: &mut dyn Node) -> String {
    let fields = different(node, default);
    let words: Vec<String> = fields.map(|(name, value)| format!("{name}={value}")).collect();
    format!("{head}({})", words.join(","))
}

/// Names and values of the leaves of `node` that differ from `default`.
fn different(node: &mut dyn Node, default: &mut dyn Node) -> impl Iterator<Item = (String, String)> + use<> {
    let fields = leaves(node).into_iter().zip(leaves(default));
    fields.filter(|(own, default)| own != default).map(|(own, _)| own)
}

/// Sets the leaf `name` of `node` to that of `default`.
fn reset(name: &str, node: &mut dyn Node, default: &mut dyn Node) {
    let mut fields = leaves(default);
    fields.retain(|(other, _)| other == name);
    // What a default prints parses.
    let _ = node.visit("", &mut Set { fields, known: Vec::new() });
}

fn leaves(node: &mut dyn Node) -> Vec<(String, String)> {
    struct Collect(Vec<(String, String)>);
    impl Visitor for Collect {
        fn leaf(&mut self, path: &str, leaf: &mut dyn Leaf) -> Result<()> {
            self.0.push((path.to_owned(), leaf.print()));
            Ok(())
        }
    }
    let mut collect = Collect(Vec::new());
    // Collecting cannot fail.
    let _ = node.visit("", &mut collect);
    collect.0
}

/// Splits `head(body)`.
pub(super) fn split(line: &str) -> Result<(&str, &str)> {
    let parts = line.trim().split_once('(').and_then(|(head, rest)| Some((head, rest.strip_suffix(')')?)));
    parts.ok_or_else(|| Error::invalid("case", "op(name=value,...)", line))
}

/// Sets the leaves of `node` that `body` names. Unknown and repeated names are errors that list the known ones.
pub(super) fn parse(body: &str, node: &mut dyn Node) -> Result<()> {
    let mut set = Set { fields: fields(body)?, known: Vec::new() };
    node.visit("", &mut set)?;
    match set.fields.first() {
        None => Ok(()),
        Some((name, _)) => Err(Error::invalid("case", set.known.join(", "), name)),
    }
}

struct Set {
    fields: Vec<(String, String)>,
    known: Vec<String>,
}

impl Visitor for Set {
    fn leaf(&mut self, path: &str, leaf: &mut dyn Leaf) -> Result<()> {
        self.known.push(path.to_owned());
        let Some(index) = self.fields.iter().position(|(name, _)| name == path) else { return Ok(()) };
        let (name, value) = self.fields.remove(index);
        if self.fields.iter().any(|(other, _)| *other == name) {
            return Err(Error::invalid(format!("case.{name}"), "one value", "several"));
        }
        leaf.parse(&value).map_err(|want| Error::invalid(format!("case.{name}"), want, value))
    }
}

/// `name=value` pairs; commas inside brackets belong to the value.
fn fields(body: &str) -> Result<Vec<(String, String)>> {
    let mut words = vec![String::new()];
    let mut depth = 0_u32;
    for c in body.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match words.last_mut() {
            Some(word) if c != ',' || depth > 0 => word.push(c),
            _ => words.push(String::new()),
        }
    }
    let words = words.into_iter().filter(|w| !w.trim().is_empty());
    let pair = |word: String| {
        let (name, value) =
            word.split_once('=').ok_or_else(|| Error::invalid("case", "name=value", &word))?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    words.map(pair).collect()
}
