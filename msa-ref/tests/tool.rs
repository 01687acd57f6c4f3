//! `msa` as a program, in a folder of its own: what it says about plugins, and where a backend is not there.
#![allow(clippy::unwrap_used, clippy::expect_used)] // In the functions beside the tests too: a failure there fails the test.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{TempDir, tempdir};

/// Held while the tool is copied and while it starts: a child that starts meanwhile would keep the copy open for writing,
/// and a file that is open for writing cannot be run.
static STARTING: Mutex<()> = Mutex::new(());

fn starting() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tool, copied to where no plugin of the build is found.
struct Tool {
    folder: TempDir,
}

impl Tool {
    fn new() -> Self {
        let folder = tempdir().unwrap();
        let _alone = starting();
        fs::copy(env!("CARGO_BIN_EXE_msa"), folder.path().join("msa")).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A file that bears the name of a vendor's plugin and is none.
    fn plant(&self, vendor: &str) -> PathBuf {
        let path = self.path().join("plugins").join(format!("libmsa_{vendor}.so"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "not a library").unwrap();
        path
    }

    fn run(&self, arguments: &[&str], plugin_path: Option<&str>) -> Output {
        let mut command = Command::new(self.path().join("msa"));
        command.env_clear().envs(plugin_path.map(|path| ("MSA_PLUGIN_PATH", path))).args(arguments);
        let _alone = starting();
        command.output().unwrap()
    }
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn env_explains_a_machine_without_plugins() {
    let tool = Tool::new();
    let output = tool.run(&["env"], None);
    assert!(output.status.success(), "{}", errors(&output));
    let (text, at) = (out(&output), tool.path().display());
    assert!(text.contains("plugin ABI 1.0, operation revision 1"), "{text}");
    assert!(text.contains(&format!("  searched {at}\n  none found\n")), "{text}");
    assert!(text.contains("backend ref ") && text.contains("  ref:0  "), "{text}");
    for vendor in ["cuda", "rocm"] {
        let want = format!(
            "no plugin {vendor}: no libmsa_{vendor}.so was loaded from {at}; `cargo xtask plugin {vendor}`"
        );
        assert!(text.contains(&want), "{text}");
    }
}

#[test]
fn env_prints_every_refusal_with_policy_and_reason() {
    let tool = Tool::new();
    let planted = tool.plant("cuda");
    let output = tool.run(&["env"], Some("somewhere/else"));
    assert!(output.status.success(), "{}", errors(&output));
    let text = out(&output);
    let relative =
        "refused somewhere/else: refused by ABI-13 (opened by absolute path): MSA_PLUGIN_PATH takes absolute";
    assert!(text.contains(relative), "{text}");
    let wrong =
        format!("refused {}: refused by ABI-13 (opened by absolute path): not a library", planted.display());
    assert!(text.contains(&wrong), "{text}");
    assert!(text.contains(&format!("searched {}/plugins", tool.path().display())), "{text}");
}

#[test]
fn a_backend_that_is_not_there_is_an_error_with_its_reason_and_status_2() {
    let tool = Tool::new();
    let output = tool.run(&["run", "--backend", "cuda:0"], None);
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(2), ""));
    let text = errors(&output);
    assert!(
        text.starts_with("msa: backend: want ref, got cuda\n  no plugin cuda: no libmsa_cuda.so "),
        "{text}"
    );

    let planted = tool.plant("cuda");
    let text = errors(&tool.run(&["run", "--backend", "cuda:0"], None));
    assert!(text.contains(&format!("refused {}: refused by ABI-13", planted.display())), "{text}");

    let output = tool.run(&["run", "--backend", "ref:7"], None);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).starts_with("msa: device: want ref:0, got ref:7"), "{}", errors(&output));
}

#[test]
fn a_plugin_path_of_a_whole_folder_is_searched() {
    let (tool, other) = (Tool::new(), Tool::new());
    let planted = other.plant("rocm");
    let text = out(&tool.run(&["env"], planted.parent().unwrap().to_str()));
    assert!(text.contains(&format!("refused {}", planted.display())), "{text}");
    assert!(text.contains(&format!("searched {}", planted.parent().unwrap().display())), "{text}");
}

/// Gives a program to another user, as whom it then runs; false where this process may not do that.
fn runs_as_another(program: &Path) -> bool {
    /// The user without rights, of every Linux.
    const NOBODY: u32 = 65534;
    let given = chown(program, Some(NOBODY), None).is_ok();
    given && fs::set_permissions(program, fs::Permissions::from_mode(0o4755)).is_ok()
}

/// True if programs in `folder` can run as another user: this process may arrange it, and the file system allows it.
fn can_raise(folder: &Path) -> bool {
    let id = folder.join("id");
    let _alone = starting();
    if fs::copy("/usr/bin/id", &id).is_err() || !runs_as_another(&id) {
        return false;
    }
    let own = Command::new("/usr/bin/id").arg("-u").output().unwrap();
    Command::new(id)
        .arg("-u")
        .output()
        .is_ok_and(|output| output.status.success() && output.stdout != own.stdout)
}

#[test]
fn a_program_with_the_rights_of_another_ignores_the_plugin_path() {
    let (tool, other) = (Tool::new(), Tool::new());
    let planted = other.plant("rocm");
    if !can_raise(tool.path()) {
        println!("skipped: this user may not give programs to another");
        return;
    }
    assert!(runs_as_another(&tool.path().join("msa")));
    let output = tool.run(&["env"], planted.parent().unwrap().to_str());
    assert!(output.status.success(), "{}", errors(&output));
    let (text, place) = (out(&output), planted.parent().unwrap().display().to_string());
    let want = format!(
        "refused {place}: refused by ABI-16 (environment of privileged processes): MSA_PLUGIN_PATH is ignored"
    );
    assert!(text.contains(&want), "{text}");
    assert!(!text.contains("libmsa_rocm.so: refused"), "{text}");
}
