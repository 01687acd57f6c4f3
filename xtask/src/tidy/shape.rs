//! Names and lengths of files, lengths of functions.

use super::Finding;
use super::functions::functions;
use super::tree::File;

/// Names that say nothing about what a file or folder holds.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "misc", "helper", "helpers"];

/// Longest source file, in lines.
const FILE_LINES: usize = 600;

/// Longest function, in lines.
const FUNCTION_LINES: usize = 120;

pub(super) fn check(file: &File, findings: &mut Vec<Finding>) {
    check_name(file, findings);
    check_file_length(file, findings);
    check_function_lengths(file, findings);
}

fn check_name(file: &File, findings: &mut Vec<Finding>) {
    for part in file.path.split('/') {
        let stem = part.split('.').next().unwrap_or(part);
        if EMPTY_NAMES.contains(&stem) {
            findings.push(Finding::new(
                &file.path,
                1,
                "file-name",
                format!("`{part}`: name the thing it holds"),
            ));
        }
    }
}

fn check_file_length(file: &File, findings: &mut Vec<Finding>) {
    let Some(text) = file.text.as_ref().filter(|_| file.source.is_some()) else { return };
    let lines = text.lines().count();
    if lines > FILE_LINES {
        let message = format!("{lines} lines, at most {FILE_LINES}: split it by subject");
        findings.push(Finding::new(&file.path, FILE_LINES + 1, "file-length", message));
    }
}

fn check_function_lengths(file: &File, findings: &mut Vec<Finding>) {
    let Some(source) = &file.source else { return };
    for function in functions(source).into_iter().filter(|function| function.lines > FUNCTION_LINES) {
        let message = format!("`{}` has {} lines, at most {FUNCTION_LINES}", function.name, function.lines);
        findings.push(Finding::new(&file.path, function.line, "function-length", message));
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    #[test]
    fn catch_all_names_are_found_as_file_and_folder() {
        assert_eq!(found("msa-ref/src/utils.rs", ""), [("file-name", 1)]);
        assert_eq!(found("tests/tests/common/mod.rs", ""), [("file-name", 1)]);
        assert_eq!(found("msa-cuda/kernels/misc.cuh", ""), [("file-name", 1)]);
        assert_eq!(found("msa-ref/src/commonality.rs", ""), []);
    }

    #[test]
    fn a_file_may_have_600_lines() {
        assert_eq!(found("a.rs", &"\n".repeat(600)), []);
        assert_eq!(found("a.rs", &"\n".repeat(601)), [("file-length", 601)]);
        assert_eq!(found("a.cu", &"\n".repeat(601)), [("file-length", 601)]);
        assert_eq!(found("a.md", &"\n".repeat(601)), []);
    }

    #[test]
    fn a_function_may_have_120_lines() {
        let function = |inner: usize| format!("\nfn f() {{\n{}}}\n", "    g();\n".repeat(inner));
        assert_eq!(found("a.rs", &function(118)), []);
        assert_eq!(found("a.rs", &function(119)), [("function-length", 2)]);
        let kernel = format!("void k() {{\n{}}}\n", "  g();\n".repeat(119));
        assert_eq!(found("a.cu", &kernel), [("function-length", 1)]);
    }

    #[test]
    fn a_long_file_may_say_why() {
        let text = format!("// tidy: allow(file-length): one table\n{}", "\n".repeat(600));
        assert_eq!(found("a.rs", &text), []);
    }
}
