//! A test in a process of its own, which finds the driver library that the test wants.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Says which test a process was started for.
const CHILD: &str = "MSA_FAKE_CUDA_TEST";

/// Path of the function that this stands in, as the test runner knows it.
macro_rules! test_name {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        path.trim_end_matches("::here").split_once("::").map_or(path, |(_, test)| test).to_owned()
    }};
}
pub(crate) use test_name;

/// The driver that a test finds.
pub(crate) struct Driver {
    variables: Vec<(&'static str, String)>,
    names: Vec<String>,
    library: Library,
    needs_kernels: bool,
}

enum Library {
    Fake,
    /// Without this symbol.
    Lacking(String),
    /// Files of the right names that are no libraries.
    Broken,
}

impl Driver {
    /// Devices of these compute capabilities.
    pub(crate) fn of(devices: &str) -> Self {
        let names = ["libcuda.so", "libcuda.so.1"].map(str::to_owned).to_vec();
        let variables = vec![("MSA_FAKE_CUDA_DEVICES", devices.to_owned())];
        Self { variables, names, library: Library::Fake, needs_kernels: true }
    }

    /// No library under any name that is tried.
    pub(crate) fn absent() -> Self {
        let names =
            ["cuda", "nvcuda"].iter().flat_map(|name| cudarc::get_lib_name_candidates(name)).collect();
        Self { names, library: Library::Broken, needs_kernels: false, ..Self::of("") }
    }

    pub(crate) fn named(self, name: &str) -> Self {
        Self { names: vec![name.to_owned()], ..self }
    }

    pub(crate) fn lacking(self, symbol: &str) -> Self {
        Self { library: Library::Lacking(symbol.to_owned()), ..self }
    }

    pub(crate) fn with(mut self, variable: &'static str, value: impl ToString) -> Self {
        self.variables.push((variable, value.to_string()));
        self
    }

    /// For what is refused before any kernel is looked for.
    pub(crate) fn without_kernels(self) -> Self {
        Self { needs_kernels: false, ..self }
    }

    /// Runs `body` in a process of its own, for the test `name`.
    pub(crate) fn run(&self, name: &str, body: impl FnOnce()) {
        if is_child(name) {
            body();
        } else if !self.needs_kernels || kernels_or_skip() {
            self.run_child(name);
        }
    }

    /// The same process for a test that starts several: what it printed.
    pub(crate) fn run_child(&self, name: &str) -> String {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for file in &self.names {
            self.place(&folder.path().join(file));
        }
        let old = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let paths = std::iter::once(folder.path().to_owned()).chain(std::env::split_paths(&old));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, name);
        command.env("LD_LIBRARY_PATH", std::env::join_paths(paths).unwrap());
        command.envs(option_env!("MSA_CUDA_KERNELS").map(|folder| ("MSA_FAKE_CUDA_IMAGES", folder)));
        command.envs(self.variables.iter().map(|(variable, value)| (variable, value)));
        let output = command.output().unwrap();
        let text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success() && text.contains("1 passed"), "{}:\n{text}", output.status);
        text
    }

    fn place(&self, to: &Path) {
        match &self.library {
            Library::Fake => std::os::unix::fs::symlink(fake_library(), to).unwrap(),
            Library::Broken => std::fs::write(to, "no library").unwrap(),
            Library::Lacking(symbol) => {
                let mut bytes = std::fs::read(fake_library()).unwrap();
                rename(&mut bytes, symbol);
                std::fs::write(to, bytes).unwrap();
            }
        }
    }
}

/// True if kernels are embedded; a failure where they must be.
pub(crate) fn kernels_or_skip() -> bool {
    let found = msa_cuda::has_kernels();
    assert!(found || std::env::var_os("MSA_REQUIRE_KERNELS").is_none(), "build with MSA_CUDA_KERNELS");
    if !found {
        println!("skipped: built without kernels");
    }
    found
}

/// Where a test is started as a child of itself: true in the child.
pub(crate) fn is_child(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|test| test == name)
}

/// Beside the tests.
pub(crate) fn fake_library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libmsa_fake_cuda.so")
}

/// Alters a name in the string table: whoever looks for it finds its hash and another name.
fn rename(library: &mut [u8], symbol: &str) {
    let entry = format!("\0{symbol}\0");
    let places: Vec<usize> = library
        .windows(entry.len())
        .enumerate()
        .filter_map(|(at, bytes)| (bytes == entry.as_bytes()).then_some(at))
        .collect();
    assert!(!places.is_empty(), "{symbol} is not in the library");
    places.into_iter().for_each(|at| library[at + 1] = b'x');
}
