//! `record` and `test --expected`: hashes first, the reference only where they differ.

use std::path::{Path, PathBuf};

use super::{LINE, check, last_line, text, with_plugin};

const DECODE: &str =
    "sparse_decode(q=e4m3,kv=nvfp4,out=f32,hq=16,hkv=1,hi=1,k=8,len=[1x1500,2x300],in=nan,seed=5)";

/// A record of `lines`, made with `arguments`, in a file of the test's own.
fn record(folder: &tempfile::TempDir, arguments: &[&str], lines: &[&str]) -> PathBuf {
    let path = folder.path().join("recorded.txt");
    let cases = lines.iter().flat_map(|line| ["-c", line]);
    let own = ["record", "--output", path.to_str().unwrap()];
    let all: Vec<&str> = own.into_iter().chain(arguments.iter().copied()).chain(cases).collect();
    let output = check(&all);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

fn expected<'a>(path: &'a Path, rest: &[&'a str]) -> Vec<&'a str> {
    [&["--expected", path.to_str().unwrap()][..], rest].concat()
}

#[test]
fn equal_hashes_pass_without_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let path = record(&folder, &[], &[LINE, DECODE]);
    let output = check(&[&["-c", LINE, "-c", DECODE, "--json"][..], &expected(&path, &[])].concat());
    assert_eq!(last_line(&output), "2 passed, 0 failed, 0 skipped");
    let text = text(&output);
    assert_eq!(text.matches("\"recorded\":\"equal\"").count(), 2, "{text}");
    assert_eq!(text.matches("\"compared\":0,").count(), 2, "nothing else was computed: {text}");
    let plain = self::text(&check(&[&["-c", LINE][..], &expected(&path, &[])].concat()));
    assert!(plain.contains("1 as recorded"), "{plain}");
}

#[test]
fn another_byte_is_a_mismatch_and_ends_in_the_usual_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = record(&folder, &[], &[LINE, DECODE]);
    let rest = expected(&path, &["-c", DECODE]);
    let output = with_plugin(&["fault = lse_base_two"], &rest);
    let text = text(&output);
    assert_eq!(
        (output.status.code(), last_line(&output).as_str()),
        (Some(1), "0 passed, 1 failed, 0 skipped")
    );
    assert!(text.contains("spec: lse[") && text.contains("ulp of f32"), "{text}");
    assert!(text.contains("sim: lse"), "the reference's own bits too: {text}");
    assert_eq!(last_line(&with_plugin(&[], &rest)), "1 passed, 0 failed, 0 skipped");
}

#[test]
fn a_record_that_is_not_of_this_version_fails_by_its_own_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = record(&folder, &[], &[LINE]);
    let recorded = std::fs::read_to_string(&path).unwrap();
    let line = recorded.lines().last().unwrap();
    std::fs::write(&path, recorded.replace(line, &format!("0000000000000000{}", &line[16..]))).unwrap();
    let output = check(&[&["-c", LINE][..], &expected(&path, &[])].concat());
    let text = text(&output);
    assert!(
        text.contains("record: hash of the outputs: got") && text.contains("recorded 0000000000000000"),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn hardware_that_is_not_here_is_recorded_by_its_plans_and_its_arithmetic() {
    for (arch, variant) in
        [("sm_90", "sparse_decode.q8k4.sm90a.f16"), ("gfx950", "sparse_decode.q8kv4.gfx950.lut")]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = record(&folder, &["--arch", arch], &[DECODE, "select(hi=2,hkv=2,len=[5x9000],in=ties)"]);
        let recorded = std::fs::read_to_string(&path).unwrap();
        assert!(recorded.contains(variant) && recorded.contains("\nunits "), "{recorded}");
        let device = format!("as:{arch}");
        let output = check(&[&["-b", &device, "-c", DECODE][..], &expected(&path, &[])].concat());
        assert!(text(&output).contains("1 as recorded"), "{}", text(&output));
        // The plain reference has another arithmetic, and so another variant.
        let output = check(&[&["-c", DECODE][..], &expected(&path, &[])].concat());
        let want = format!("variant sparse_decode.any.cpu.ref, recorded {variant}");
        assert!(text(&output).contains(&want), "{}", text(&output));
        assert_eq!(last_line(&output), "1 passed, 0 failed, 0 skipped");
    }
}

#[test]
fn another_plan_is_named_and_compared_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let path = record(&folder, &["--arch", "sm90a"], &[DECODE]);
    let run = |units| {
        check(&[&["-b", "as:sm90a", "--units", units, "-c", DECODE][..], &expected(&path, &[])].concat())
    };
    let few = text(&run("1"));
    assert!(few.contains("not as recorded 1 x plan ") && few.contains(" of 1 units, recorded "), "{few}");
    assert!(few.contains(" of 132 units") && few.ends_with("1 passed, 0 failed, 0 skipped\n"), "{few}");
    let nearly = text(&run("131"));
    assert!(nearly.contains("1 as recorded"), "131 SMs decide nothing else than 132: {nearly}");
}

/// No kernel for Hopper takes it.
const PREFILL: &str = "sparse_prefill(hq=8,hkv=2,hi=2,k=4,len=[9x700])";

#[test]
fn bad_records_and_unknown_architectures_are_errors() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "units 1\nnonsense\n").unwrap();
    let path = file.path().to_str().unwrap();
    for (arguments, want) in [
        (&["-c", LINE, "--expected", path][..], "line 2: want hash, plan, variant, case, got 'nonsense'"),
        (&["-c", LINE, "--expected", "/nowhere"], "/nowhere: No such file"),
        (&["record", "--arch", "sm80", "-c", LINE], "sm103a"),
        (&["record", "--arch", "sm90a", "-c", PREFILL], "as:sm90a takes none of 1 cases"),
        (&["record", "-b", "ref", "-c", "merge(x=1)"], "case"),
    ] {
        let output = check(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(want), "{error}");
        assert_eq!((output.status.code(), text(&output).contains("passed")), (Some(2), false), "{error}");
    }
}
