//! Tokens that must not appear: unfinished work, ignored tests, `unsafe` and libm out of place.

use super::Finding;
use super::scan::{Language, Source, line_of, words};
use super::tree::File;

/// Where `unsafe` may stand: borders to C, vector instructions, devices, and the tests of these. Prefixes of paths.
const UNSAFE_PLACES: [&str; 7] = [
    "msa-core/src/abi",
    "msa-core/src/loader",
    "msa-ref/src/simd",
    "msa-ref/src/plugin",
    "msa-cuda/",
    "msa-rocm/",
    "tests/",
];

/// Crates whose results are compared bit for bit, so that no host library may round for them.
const LIBM_FREE: [&str; 2] = ["msa-core/src/", "msa-ref/src/"];

/// Where libm is wanted all the same: the f64 equations, and the builder of the RoPE table, which is made once on the host and
/// passed to every backend as data.
const LIBM_PLACES: [&str; 4] =
    ["msa-ref/src/spec/", "msa-ref/src/spec.rs", "msa-core/src/rope", "msa-ref/src/rope"];

/// Float methods that libm computes, with an error of its own. All but `powf` and `powi` take no argument, which tells them
/// from methods of the arithmetic models with the same names.
const LIBM_METHODS: [&str; 17] = [
    ".exp()",
    ".exp2()",
    ".exp_m1()",
    ".ln()",
    ".ln_1p()",
    ".log2()",
    ".log10()",
    ".sin()",
    ".cos()",
    ".tan()",
    ".sin_cos()",
    ".sinh()",
    ".cosh()",
    ".tanh()",
    ".cbrt()",
    ".powf(",
    ".powi(",
];

/// The same called by path.
const LIBM_FUNCTIONS: [&str; 9] = ["exp", "exp2", "ln", "log2", "sin", "cos", "tanh", "powf", "powi"];

pub(super) fn check(file: &File, findings: &mut Vec<Finding>) {
    check_unfinished(file, findings);
    if let Some(source) = file.source.as_ref().filter(|source| source.language == Language::Rust) {
        check_ignored(file, source, findings);
        check_unsafe(file, source, findings);
        check_libm(file, source, findings);
    }
}

fn check_unfinished(file: &File, findings: &mut Vec<Finding>) {
    let mut report = |text: &str, offset: usize, what: &str| {
        let message = format!("`{what}`: finish it or remove it");
        findings.push(Finding::new(&file.path, line_of(text, offset), "unfinished", message));
    };
    if let Some(source) = &file.source {
        for name in ["todo!", "unimplemented!"] {
            words(&source.code, name).for_each(|offset| report(&source.code, offset, name));
        }
    }
    let text = match (&file.source, &file.text) {
        (Some(source), _) => &source.comments,
        (None, Some(text)) => text,
        (None, None) => return,
    };
    for mark in [concat!("FIX", "ME"), concat!("X", "XX")] {
        words(text, mark).for_each(|offset| report(text, offset, mark));
    }
}

fn check_ignored(file: &File, source: &Source, findings: &mut Vec<Finding>) {
    let message = "a test that does not run proves nothing: run it, or skip it in the harness with a reason";
    let in_attribute = |line: &str| line.contains("#[ignore") || line.contains("cfg_attr(");
    let in_example = |line: &str| line.contains("```");
    let mut report = |text: &str, is_marked: &dyn Fn(&str) -> bool| {
        for (index, line) in text.lines().enumerate() {
            if is_marked(line) && words(line, "ignore").next().is_some() {
                findings.push(Finding::new(&file.path, index + 1, "ignored-test", message));
            }
        }
    };
    report(&source.code, &in_attribute);
    report(&source.comments, &in_example);
}

fn check_unsafe(file: &File, source: &Source, findings: &mut Vec<Finding>) {
    if UNSAFE_PLACES.iter().any(|place| file.path.starts_with(place)) {
        return;
    }
    for offset in words(&source.code, "unsafe") {
        let message = "`unsafe` belongs in the ABI, the loader, the vector code and the vendor crates only";
        findings.push(Finding::new(&file.path, line_of(&source.code, offset), "unsafe-place", message));
    }
}

fn check_libm(file: &File, source: &Source, findings: &mut Vec<Finding>) {
    let within = |places: &[&str]| places.iter().any(|place| file.path.starts_with(place));
    if !within(&LIBM_FREE) || within(&LIBM_PLACES) || file.name() == "tests.rs" {
        return;
    }
    let mut offsets: Vec<usize> = Vec::new();
    for method in LIBM_METHODS {
        offsets.extend(source.code.match_indices(method).map(|(offset, _)| offset));
    }
    for float in ["f32::", "f64::"] {
        for function in LIBM_FUNCTIONS {
            offsets.extend(words(&source.code, &format!("{float}{function}")));
        }
    }
    offsets.sort_unstable();
    for offset in offsets.into_iter().filter(|offset| !source.in_test(*offset)) {
        let message =
            "libm differs between machines: use the crate's own polynomial, or spec's f64 for a bound";
        findings.push(Finding::new(&file.path, line_of(&source.code, offset), "libm", message));
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    #[test]
    fn unfinished_work_is_found_in_code_and_comments() {
        assert_eq!(found("a.rs", "fn f() { todo!() }\nfn g() { unimplemented!(\"x\") }\n").len(), 2);
        let mark = concat!("FIX", "ME");
        assert_eq!(found("a.cu", &format!("int x; // {mark}: y\n")), [("unfinished", 1)]);
        assert_eq!(found("README.md", &format!("{} later\n", concat!("X", "XX"))), [("unfinished", 1)]);
    }

    #[test]
    fn words_that_only_look_unfinished_are_fine() {
        assert_eq!(
            found("a.rs", "fn todo() {}\nconst A: &str = \"todo!()\"; // 0xXXXX, the todo! macro\n"),
            []
        );
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_eq!(found("a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n"), [("ignored-test", 2)]);
        assert_eq!(found("a.rs", "#[cfg_attr(miri, ignore)]\nfn f() {}\n"), [("ignored-test", 1)]);
        assert_eq!(found("a.rs", "/// ```rust,ignore\n/// f()\n/// ```\nfn f() {}\n"), [("ignored-test", 1)]);
        assert_eq!(found("a.rs", "fn ignore() {} // #[ignore]\n"), []);
    }

    #[test]
    fn unsafe_is_kept_to_its_places() {
        let text = "fn f() {\n    unsafe { g() }\n}\n";
        for path in ["msa-core/src/plan.rs", "msa-ref/src/sim/decode.rs", "xtask/src/main.rs"] {
            assert_eq!(found(path, text), [("unsafe-place", 2)], "{path}");
        }
        for path in [
            "msa-core/src/abi/table.rs",
            "msa-core/src/loader.rs",
            "msa-ref/src/simd/avx2.rs",
            "tests/src/a.rs",
        ] {
            assert_eq!(found(path, text), [], "{path}");
        }
        assert_eq!(found("msa-core/src/lib.rs", "#![forbid(unsafe_code)] // unsafe\n"), []);
    }

    #[test]
    fn libm_is_found_in_the_reference() {
        for call in ["x.exp()", "x.exp2()", "x.ln()", "x.powf(y)", "x.sin()", "x.cos()", "f64::exp2(x)"] {
            let text = format!("fn f(x: f32) {{\n    {call};\n}}\n");
            assert_eq!(found("msa-ref/src/sim/softmax.rs", &text), [("libm", 2)], "{call}");
            for path in ["msa-ref/src/spec/attend.rs", "msa-core/src/rope.rs", "tests/src/bounds.rs"] {
                assert_eq!(found(path, &text), [], "{call} in {path}");
            }
        }
    }

    #[test]
    fn correctly_rounded_methods_models_and_tests_are_fine() {
        let text = "fn f() { x.sqrt(); x.mul_add(y, z); n.ilog2(); model.exp2(x); }\n\
                    #[cfg(test)]\nmod tests {\n    fn g() { x.exp(); }\n}\n";
        assert_eq!(found("msa-ref/src/sim/softmax.rs", text), []);
    }
}
