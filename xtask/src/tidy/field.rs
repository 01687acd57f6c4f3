//! `tests/field.toml`: problems that users of similar kernels reported, each with the test that covers it here, the work that
//! still owes one, or the reason why it does not apply.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use super::Finding;
use super::functions::{Function, functions};
use super::scan::{Language, line_of};
use super::tree::{File, Tree};

const PATH: &str = "tests/field.toml";
const RULE: &str = "field-problem";

/// Groups and how many problems each has, numbered from 1: 116 together.
const GROUPS: [(char, usize); 16] = [
    ('A', 9),
    ('B', 11),
    ('C', 5),
    ('D', 7),
    ('E', 11),
    ('F', 7),
    ('G', 7),
    ('H', 5),
    ('I', 6),
    ('J', 8),
    ('K', 7),
    ('L', 5),
    ('M', 8),
    ('N', 6),
    ('O', 7),
    ('P', 7),
];

/// Who may owe a test.
const DEBTORS: [&str; 6] = ["core", "reference", "cuda", "rocm", "plugins", "multi-gpu"];

/// How the problems stand. An entry with tests that is still owed on some backend counts in both.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Summary {
    problems: usize,
    tested: usize,
    owed: usize,
    /// Entries that each debtor owes.
    debts: BTreeMap<String, usize>,
    not_applicable: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} field problems: {} tested, {} owed", self.problems, self.tested, self.owed)?;
        let debts: Vec<String> = DEBTORS
            .iter()
            .filter_map(|debtor| self.debts.get(*debtor).map(|count| format!("{debtor} {count}")))
            .collect();
        if !debts.is_empty() {
            write!(out, " ({})", debts.join(", "))?;
        }
        write!(out, ", {} not applicable", self.not_applicable)
    }
}

/// Check the list against the tests of the tree, both ways.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) -> Summary {
    let text = tree.file(PATH).and_then(|file| file.text.as_deref()).unwrap_or("");
    let list: BTreeMap<String, Entry> = match toml::from_str(text) {
        Ok(list) => list,
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            findings.push(Finding::new(PATH, line, RULE, error.message()));
            return Summary::default();
        }
    };
    let mut reporter = Reporter { text, findings };
    check_ids(&list, &mut reporter);
    let tests = Tests::of(tree);
    for (id, entry) in &list {
        check_entry(id, entry, &mut reporter);
        check_names(id, entry, &tests, &mut reporter);
    }
    check_unlisted(&list, &tests, reporter.findings);
    summarise(&list)
}

/// What the file says about one problem.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    title: String,
    #[serde(default)]
    tests: Vec<String>,
    #[serde(default)]
    owed: Debts,
    not_applicable: Option<String>,
}

/// One debt or a list of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`owed` is { by = \"...\", why = \"...\" } or a list of these")]
enum Debts {
    One(Debt),
    Many(Vec<Debt>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Debt {
    by: String,
    why: String,
}

impl Default for Debts {
    fn default() -> Debts {
        Debts::Many(Vec::new())
    }
}

impl Debts {
    fn all(&self) -> &[Debt] {
        match self {
            Debts::One(debt) => std::slice::from_ref(debt),
            Debts::Many(debts) => debts,
        }
    }
}

struct Reporter<'a> {
    text: &'a str,
    findings: &'a mut Vec<Finding>,
}

impl Reporter<'_> {
    /// Report at the header of the entry, or at the top if there is none.
    fn report(&mut self, id: &str, message: String) {
        let header = format!("[{id}]");
        let line = self.text.lines().position(|line| line.trim() == header).map_or(1, |index| index + 1);
        self.findings.push(Finding::new(PATH, line, RULE, message));
    }
}

fn known_ids() -> impl Iterator<Item = String> {
    GROUPS.iter().flat_map(|(group, count)| (1..=*count).map(move |number| format!("{group}{number:02}")))
}

/// TOML itself refuses an id that stands twice.
fn check_ids(list: &BTreeMap<String, Entry>, reporter: &mut Reporter<'_>) {
    for id in known_ids().filter(|id| !list.contains_key(id)) {
        reporter.report(&id, format!("{id} is missing"));
    }
    for id in list.keys().filter(|id| !known_ids().any(|known| known == **id)) {
        reporter.report(id, format!("{id} is no known problem"));
    }
}

fn check_entry(id: &str, entry: &Entry, reporter: &mut Reporter<'_>) {
    let debts = entry.owed.all();
    if entry.title.trim().is_empty() {
        reporter.report(id, format!("{id} has no title"));
    }
    let stands = !entry.tests.is_empty() || !debts.is_empty();
    match &entry.not_applicable {
        Some(reason) if stands || reason.trim().is_empty() => {
            reporter.report(id, format!("{id}: `not_applicable` stands alone, with a reason"));
        }
        None if !stands => reporter.report(id, format!("{id} has neither tests nor owed nor not_applicable")),
        _ => {}
    }
    for debt in debts {
        if !DEBTORS.contains(&debt.by.as_str()) {
            reporter.report(id, format!("{id} is owed by `{}`: one of {}", debt.by, DEBTORS.join(", ")));
        }
        if debt.why.trim().is_empty() {
            reporter.report(id, format!("{id} is owed without a reason"));
        }
    }
}

fn check_names(id: &str, entry: &Entry, tests: &Tests, reporter: &mut Reporter<'_>) {
    for name in &entry.tests {
        if let Err(reason) = tests.find(name) {
            reporter.report(id, format!("{id}: `{name}`: {reason}"));
        }
    }
}

/// A test that carries an id in its name is listed under that id.
fn check_unlisted(list: &BTreeMap<String, Entry>, tests: &Tests, findings: &mut Vec<Finding>) {
    for (path, function) in &tests.functions {
        let Some(id) = id_of(&function.name) else { continue };
        let listed = list.get(&id).is_some_and(|entry| {
            entry.tests.iter().any(|name| split_name(name).is_some_and(|(_, last)| last == function.name))
        });
        if !listed {
            let message = format!("`{}` is not among the tests of {id} in {PATH}", function.name);
            findings.push(Finding::new(path, function.line, RULE, message));
        }
    }
}

fn summarise(list: &BTreeMap<String, Entry>) -> Summary {
    let mut summary = Summary { problems: list.len(), ..Summary::default() };
    for entry in list.values() {
        let mut debtors: Vec<&str> = entry.owed.all().iter().map(|debt| debt.by.as_str()).collect();
        debtors.sort_unstable();
        debtors.dedup();
        summary.tested += usize::from(!entry.tests.is_empty());
        summary.owed += usize::from(!debtors.is_empty());
        summary.not_applicable += usize::from(entry.not_applicable.is_some());
        for debtor in debtors {
            *summary.debts.entry(debtor.to_owned()).or_default() += 1;
        }
    }
    summary
}

/// The known id that a function name starts with: `a01_ties` gives A01.
fn id_of(name: &str) -> Option<String> {
    let id = name.split_once('_')?.0;
    // Ids are lower case in names; an upper-case prefix is something else.
    let upper = id.to_ascii_uppercase();
    (id == id.to_ascii_lowercase() && known_ids().any(|known| known == upper)).then_some(upper)
}

/// Place and function of a listed test: `crate::path::function` or `file: function`.
fn split_name(name: &str) -> Option<(Place<'_>, &str)> {
    if let Some((file, function)) = name.split_once(": ") {
        return Some((Place::File(file.trim()), function.trim()));
    }
    let (path, function) = name.rsplit_once("::")?;
    Some((Place::Crate(path.split("::").next().unwrap_or(path)), function))
}

enum Place<'a> {
    File(&'a str),
    Crate(&'a str),
}

/// The tests of the workspace.
struct Tests {
    /// Path of the file and function, tests only.
    functions: Vec<(String, Function)>,
    /// Library name of each package, and its folder with a closing slash.
    crates: BTreeMap<String, String>,
}

impl Tests {
    fn of(tree: &Tree) -> Tests {
        let mut tests = Tests { functions: Vec::new(), crates: BTreeMap::new() };
        for file in &tree.files {
            if let Some(source) = file.source.as_ref().filter(|source| source.language == Language::Rust) {
                let found = functions(source).into_iter().filter(|function| function.test);
                tests.functions.extend(found.map(|function| (file.path.clone(), function)));
            }
            if let Some((name, folder)) = package(file) {
                tests.crates.insert(name, folder);
            }
        }
        tests
    }

    /// Whether the listed name is a test of this workspace, or what is wrong with it.
    fn find(&self, name: &str) -> Result<(), String> {
        let Some((place, function)) = split_name(name) else {
            return Err("write `crate::path::function` or `file: function`".to_owned());
        };
        let belongs: Box<dyn Fn(&str) -> bool> = match place {
            Place::File(file) => Box::new(move |path| path == file),
            Place::Crate(name) => match self.crates.get(name) {
                Some(folder) => Box::new(move |path| path.starts_with(folder)),
                None => return Err(format!("no package of the workspace is called {name}")),
            },
        };
        match self.functions.iter().any(|(path, found)| found.name == function && belongs(path)) {
            true => Ok(()),
            false => Err("no such test there".to_owned()),
        }
    }
}

/// Library name and folder of a package, from its manifest.
fn package(file: &File) -> Option<(String, String)> {
    let folder = file.path.strip_suffix("Cargo.toml")?;
    let manifest: toml::Table = file.text.as_ref()?.parse().ok()?;
    let name = manifest.get("package")?.get("name")?.as_str()?;
    Some((name.replace('-', "_"), folder.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = ("msa-core/Cargo.toml", "[package]\nname = \"msa-core\"\n");
    const SOURCE: (&str, &str) =
        ("msa-core/src/select.rs", "#[cfg(test)]\nmod tests {\n    #[test]\n    fn a01_ties() {}\n}\n");

    /// A list of all ids, all owed, with the entry of `id` replaced by `body`.
    fn list(id: &str, body: &str) -> String {
        let entry = |known: String| {
            let body = if known == id { body } else { "owed = { by = \"cuda\", why = \"a test\" }" };
            format!("[{known}]\ntitle = \"t\"\n{body}\n")
        };
        known_ids().map(entry).collect()
    }

    fn messages(text: &str, files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![(PATH, text)];
        all.extend_from_slice(files);
        let mut findings = Vec::new();
        check(&Tree::of(&all), &mut findings);
        findings
            .into_iter()
            .map(|finding| format!("{}:{} {}", finding.path, finding.line, finding.message))
            .collect()
    }

    #[test]
    fn there_are_116_ids() {
        let ids: Vec<String> = known_ids().collect();
        assert_eq!((ids.len(), ids[0].as_str(), ids[115].as_str()), (116, "A01", "P07"));
    }

    #[test]
    fn missing_unknown_and_repeated_ids_are_found() {
        let all = list("", "");
        assert_eq!(messages(&all, &[]), [""; 0]);
        assert_eq!(messages(&all.replace("[C03]", "[C06]"), &[]).len(), 2);
        let twice = messages(&all.replace("[C03]", "[C02]"), &[]);
        assert!(twice.len() == 1 && twice[0].contains("duplicate"), "{twice:?}");
        assert_eq!(messages("", &[]).len(), 116);
    }

    #[test]
    fn an_entry_says_exactly_how_it_stands() {
        for body in [
            "",
            "not_applicable = \"\"",
            "not_applicable = \"no\"\nowed = { by = \"cuda\", why = \"w\" }",
            "owed = { by = \"somebody\", why = \"w\" }",
            "owed = { by = \"cuda\", why = \" \" }",
            "owed = { by = \"cuda\" }",
            "tested = true",
        ] {
            assert_eq!(messages(&list("B03", body), &[]).len(), 1, "{body}");
        }
        let many = "owed = [{ by = \"core\", why = \"w\" }, { by = \"rocm\", why = \"w\" }]";
        for body in [many, "not_applicable = \"no such layout\""] {
            assert_eq!(messages(&list("B03", body), &[]), [""; 0], "{body}");
        }
        assert_eq!(messages(&list("B03", ""), &[])[0].split(' ').next(), Some("tests/field.toml:34"));
    }

    #[test]
    fn listed_tests_exist_where_the_name_says() {
        let listed =
            |name: &str| messages(&list("A01", &format!("tests = [\"{name}\"]")), &[MANIFEST, SOURCE]);
        assert_eq!(listed("msa_core::select::tests::a01_ties"), [""; 0]);
        assert_eq!(listed("msa-core/src/select.rs: a01_ties"), [""; 0]);
        for name in
            ["msa_core::select::a01_gone", "msa_ref::a01_ties", "msa-core/src/plan.rs: a01_ties", "a01_ties"]
        {
            assert!(listed(name).iter().any(|message| message.contains(name)), "{name}");
        }
    }

    #[test]
    fn a_plain_function_is_no_test() {
        let plain = ("msa-core/src/select.rs", "fn a01_ties() {}\n");
        let text = list("A01", "tests = [\"msa_core::a01_ties\"]");
        assert_eq!(messages(&text, &[MANIFEST, plain]).len(), 1);
    }

    #[test]
    fn tests_with_an_id_are_listed_under_it() {
        let unlisted = messages(&list("", ""), &[MANIFEST, SOURCE]);
        assert_eq!(unlisted.len(), 1);
        assert!(unlisted[0].starts_with("msa-core/src/select.rs:4 `a01_ties`"), "{unlisted:?}");
        let elsewhere = messages(&list("A02", "tests = [\"msa_core::a01_ties\"]"), &[MANIFEST, SOURCE]);
        assert_eq!(elsewhere.len(), 1);
        let other_names = ("msa-core/src/a.rs", "#[test]\nfn k16_heads() {}\n#[test]\nfn a01() {}\n");
        assert_eq!(messages(&list("", ""), &[MANIFEST, other_names]), [""; 0]);
    }

    #[test]
    fn the_summary_counts_every_kind() {
        let both = "tests = [\"msa_core::a01_ties\"]\nowed = [{ by = \"rocm\", why = \"w\" }, { by = \"cuda\", why = \"w\" }]";
        let text = list("A01", both).replace(
            "[P07]\ntitle = \"t\"\nowed = { by = \"cuda\", why = \"a test\" }",
            "[P07]\ntitle = \"t\"\nnot_applicable = \"no\"",
        );
        let tree = Tree::of(&[(PATH, &text), MANIFEST, SOURCE]);
        let mut findings = Vec::new();
        let summary = check(&tree, &mut findings).to_string();
        assert_eq!(findings, []);
        assert_eq!(summary, "116 field problems: 1 tested, 115 owed (cuda 115, rocm 1), 1 not applicable");
    }
}
