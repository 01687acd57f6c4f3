//! One description of a structure's fields for printing, parsing, hashing and mutation.
//!
//! A type that decides something implements [`Node`]: it visits its leaves by name. Printing and parsing are two
//! visitors over the same list, so what prints also parses, and a field that is added once is printed, parsed,
//! hashed and covered by the mutation tests.

use crate::error::{Error, Result};

/// A value that is written as one token or one line.
pub trait Leaf {
    /// The value as text without line breaks.
    fn print(&self) -> String;

    /// Replaces the value by what `text` says; `Err` holds what was wanted.
    fn parse(&mut self, text: &str) -> Result<(), String>;
}

/// A structure of named leaves.
pub trait Node {
    /// Calls `visitor` for every leaf in a fixed order; `path` is the dotted name of `self`.
    fn visit(&mut self, path: &str, visitor: &mut dyn Visitor) -> Result<()>;
}

/// What is done at every leaf.
pub trait Visitor {
    /// Visits the leaf called `path`.
    fn leaf(&mut self, path: &str, leaf: &mut dyn Leaf) -> Result<()>;
}

/// `name = value` lines of every leaf, in order.
pub fn print(root: &mut dyn Node, path: &str) -> Result<String> {
    struct Printer(String);
    impl Visitor for Printer {
        fn leaf(&mut self, path: &str, leaf: &mut dyn Leaf) -> Result<()> {
            self.0.push_str(path);
            self.0.push_str(" = ");
            self.0.push_str(&leaf.print());
            self.0.push('\n');
            Ok(())
        }
    }
    let mut printer = Printer(String::new());
    root.visit(path, &mut printer)?;
    Ok(printer.0)
}

/// Fills `root` from lines as [`print()`] writes them: every leaf once, in order; blank lines and lines that start with
/// `#` are skipped. Errors name the line number, the field that was due and what stood there.
pub fn parse(root: &mut dyn Node, path: &str, text: &str) -> Result<()> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'));
    let mut parser = Parser { lines: Box::new(lines) };
    root.visit(path, &mut parser)?;
    match parser.lines.next() {
        None => Ok(()),
        Some((number, line)) => Err(Error::Plan(format!(
            "line {}: nothing is due after the last field, got '{line}'",
            number + 1
        ))),
    }
}

struct Parser<'a> {
    lines: Box<dyn Iterator<Item = (usize, &'a str)> + 'a>,
}

impl Visitor for Parser<'_> {
    fn leaf(&mut self, path: &str, leaf: &mut dyn Leaf) -> Result<()> {
        let Some((number, line)) = self.lines.next() else {
            return Err(Error::Plan(format!("ends before field '{path}'")));
        };
        let at = |detail: String| Error::Plan(format!("line {}: {detail}", number + 1));
        let Some((name, value)) = line.split_once(" = ") else {
            return Err(at(format!("want '{path} = ...', got '{line}'")));
        };
        if name != path {
            return Err(at(format!("want field '{path}', got '{name}'")));
        }
        leaf.parse(value).map_err(|want| at(format!("{path}: want {want}, got '{value}'")))
    }
}

macro_rules! number_leaf {
    ($($t:ty),*) => {$(
        impl Leaf for $t {
            fn print(&self) -> String {
                format!("{self:?}")
            }
            fn parse(&mut self, text: &str) -> Result<(), String> {
                *self = text.trim().parse().map_err(|_| concat!("a ", stringify!($t)).to_owned())?;
                Ok(())
            }
        }
    )*};
}
number_leaf!(u32, u64, i32, i64, f32, bool);

impl Leaf for String {
    fn print(&self) -> String {
        self.replace(['\n', '\r'], " ")
    }
    fn parse(&mut self, text: &str) -> Result<(), String> {
        self.clear();
        self.push_str(text);
        Ok(())
    }
}

impl<T: Leaf + Default> Leaf for Option<T> {
    fn print(&self) -> String {
        self.as_ref().map_or_else(|| "-".to_owned(), Leaf::print)
    }
    fn parse(&mut self, text: &str) -> Result<(), String> {
        *self = None;
        if text.trim() != "-" {
            self.insert(T::default()).parse(text)?;
        }
        Ok(())
    }
}

/// A list of leaves: a count, then one line each. The count is bounded so that a damaged text cannot ask for more
/// memory than it is long.
pub fn visit_list<T: Leaf + Default>(list: &mut Vec<T>, path: &str, visitor: &mut dyn Visitor) -> Result<()> {
    visit_count(list, path, visitor)?;
    list.iter_mut().enumerate().try_for_each(|(i, leaf)| visitor.leaf(&format!("{path}[{i}]"), leaf))
}

/// A list of structures: a count, then their leaves.
pub fn visit_nodes<T: Node + Default>(
    list: &mut Vec<T>,
    path: &str,
    visitor: &mut dyn Visitor,
) -> Result<()> {
    visit_count(list, path, visitor)?;
    list.iter_mut().enumerate().try_for_each(|(i, node)| node.visit(&format!("{path}[{i}]"), visitor))
}

/// Most entries of a list in a text.
const MAX_LIST: u64 = 1 << 24;

fn visit_count<T: Default>(list: &mut Vec<T>, path: &str, visitor: &mut dyn Visitor) -> Result<()> {
    let mut count = list.len() as u64;
    visitor.leaf(&format!("{path}.count"), &mut count)?;
    if count > MAX_LIST {
        return Err(Error::Plan(format!("{path}.count: want at most {MAX_LIST}, got {count}")));
    }
    list.resize_with(count as usize, T::default);
    Ok(())
}

/// Implements [`Leaf`] for an enumeration of unit variants by name, and `ALL` is the list of its values.
macro_rules! names {
    ($t:ty { $($variant:ident = $name:literal),* $(,)? }) => {
        impl $t {
            /// Name in plans, cases and on command lines.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
        impl $crate::text::Leaf for $t {
            fn print(&self) -> String {
                self.name().to_owned()
            }
            fn parse(&mut self, text: &str) -> std::result::Result<(), String> {
                *self = match text.trim() {
                    $($name => Self::$variant,)*
                    _ => return Err([$($name),*].join(", ")),
                };
                Ok(())
            }
        }
        impl std::fmt::Display for $t {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// Implements [`Node`] for a structure: `leaf` fields, `node` fields, `list` (of leaves) and `nodes` (lists of nodes).
macro_rules! fields {
    ($t:ty { $($kind:ident $field:ident),* $(,)? }) => {
        impl $crate::text::Node for $t {
            fn visit(&mut self, path: &str, visitor: &mut dyn $crate::text::Visitor) -> $crate::error::Result<()> {
                $($crate::text::fields!(@$kind self, $field, path, visitor);)*
                Ok(())
            }
        }
    };
    (@leaf $s:ident, $field:ident, $path:ident, $v:ident) => {
        $v.leaf(&format!("{}.{}", $path, stringify!($field)), &mut $s.$field)?
    };
    (@node $s:ident, $field:ident, $path:ident, $v:ident) => {
        $crate::text::Node::visit(&mut $s.$field, &format!("{}.{}", $path, stringify!($field)), $v)?
    };
    (@list $s:ident, $field:ident, $path:ident, $v:ident) => {
        $crate::text::visit_list(&mut $s.$field, &format!("{}.{}", $path, stringify!($field)), $v)?
    };
    (@nodes $s:ident, $field:ident, $path:ident, $v:ident) => {
        $crate::text::visit_nodes(&mut $s.$field, &format!("{}.{}", $path, stringify!($field)), $v)?
    };
}

/// Implements [`Leaf`] for a record of numbers: one line, fields separated by blanks.
macro_rules! record {
    ($t:ty { $($field:ident),* $(,)? }) => {
        impl $crate::text::Leaf for $t {
            fn print(&self) -> String {
                [$($crate::text::Leaf::print(&self.$field)),*].join(" ")
            }
            fn parse(&mut self, text: &str) -> std::result::Result<(), String> {
                let want = || concat!("fields", $(" ", stringify!($field)),*).to_owned();
                let mut words = text.split_whitespace();
                $($crate::text::Leaf::parse(&mut self.$field, words.next().ok_or_else(want)?)?;)*
                if words.next().is_some() { Err(want()) } else { Ok(()) }
            }
        }
    };
}

pub(crate) use {fields, names, record};

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Clone)]
    struct Pair {
        a: u32,
        b: Option<u32>,
    }
    record!(Pair { a, b });

    #[derive(Debug, Default, PartialEq, Clone)]
    struct Sample {
        scale: f32,
        name: String,
        pairs: Vec<Pair>,
    }
    fields!(Sample { leaf scale, leaf name, list pairs });

    #[test]
    fn what_prints_parses() {
        let mut sample = Sample {
            scale: 0.088_388_35,
            name: "a b = c".into(),
            pairs: vec![Pair { a: 1, b: None }, Pair { a: 2, b: Some(3) }],
        };
        let text = print(&mut sample, "s").unwrap();
        assert_eq!(
            text,
            "s.scale = 0.08838835\ns.name = a b = c\ns.pairs.count = 2\ns.pairs[0] = 1 -\ns.pairs[1] = 2 3\n"
        );
        let mut back = Sample::default();
        parse(&mut back, "s", &text).unwrap();
        assert_eq!(back, sample);
    }

    #[test]
    fn errors_name_line_and_field() {
        let mut s = Sample::default();
        let message = |s: &mut Sample, text: &str| parse(s, "s", text).unwrap_err().to_string();
        assert_eq!(message(&mut s, "s.scale = x"), "plan: line 1: s.scale: want a f32, got 'x'");
        assert_eq!(message(&mut s, "s.name = x"), "plan: line 1: want field 's.scale', got 's.name'");
        assert_eq!(message(&mut s, "s.scale = 1\n"), "plan: ends before field 's.name'");
        let huge = "s.scale = 1\ns.name = n\ns.pairs.count = 18446744073709551615\n";
        assert!(message(&mut s, huge).contains("want at most"));
    }
}
