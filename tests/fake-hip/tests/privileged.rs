//! A process with raised privileges takes no library from its environment (policy ABI-16). One test in one process: the group
//! of the process is changed, and libraries are opened once.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use msa_core::lengths::Lengths;
use msa_core::op::{Op, Select};
use msa_core::plan::PlanOptions;
use msa_fake_hip::Simulated;
use msa_rocm::hip::{self, Unavailable};
use msa_rocm::{Images, backend_over};

/// The group without rights, of every Linux.
const NOBODY: u32 = 65534;

unsafe extern "C" {
    safe fn getgid() -> u32;
    safe fn setegid(group: u32) -> i32;
}

#[test]
fn variables_name_no_library_to_a_privileged_process() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("plugins/rocm");
    let Some(images) = Images::of_folder(&folder).ok().filter(|images| !images.is_empty()) else {
        assert!(std::env::var_os("MSA_REQUIRE_KERNELS").is_none(), "run cargo xtask plugin rocm");
        println!("skipped: no kernels in {}", folder.display());
        return;
    };
    let library = std::env::current_exe().unwrap().parent().unwrap().join("libmsa_fake_hip.so");
    for name in ["MSA_HIP_LIBRARY", "MSA_ROCTX_LIBRARY"] {
        // SAFETY: no other thread of this process reads the environment yet.
        unsafe { std::env::set_var(name, &library) };
    }
    let simulated = Simulated::new(&["gfx950"]);
    decode(&simulated, &folder.join("select.gfx950.hsaco"));
    if setegid(NOBODY) != 0 {
        println!("skipped: this user may not change its group");
        return;
    }
    let found = hip::runtime();
    let tried = if let Err(Unavailable::NoRuntime { tried }) = &found { tried.as_slice() } else { &[] };
    let library_text = library.display().to_string();
    assert!(!tried.iter().any(|place| place.contains(&library_text)), "{tried:?}");
    assert!(
        !found.is_ok_and(|hip| hip.describe_device(0).is_ok_and(|device| device.0.contains("Simulated")))
    );
    run(&simulated, images);
    assert_eq!(setegid(getgid()), 0);
    assert_eq!(ranges(&library), "\ndepth 0", "a run was announced to a library of the environment");
}

/// The interpreter asks rustc where its disassembler is, which a privileged process cannot.
fn decode(simulated: &Simulated, file: &Path) {
    let (image, table) = (std::fs::read(file).unwrap(), simulated.hip().table());
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the image is a whole code object.
    assert_eq!(unsafe { (table.hipModuleLoadData)(&mut module, image.as_ptr().cast()) }, 0);
    let name = c"select_f32_gfx950_radix".as_ptr();
    // SAFETY: the module is loaded, and the name ends with a zero.
    assert_eq!(unsafe { (table.hipModuleGetFunction)(&mut function, module, name) }, 0);
}

/// Prepares and enqueues a run over another runtime.
fn run(simulated: &Simulated, images: Images) {
    let device = backend_over(simulated.hip(), images).open(0).unwrap();
    let lengths = Lengths::from_lists(&[1], &[300]).unwrap();
    let plan = device.plan(&Op::Select(Select::default()), &lengths, &PlanOptions::default()).unwrap();
    let prepared = device.prepare(&plan).unwrap();
    let workspace = device.memory().allocate(plan.workspace_bytes).unwrap();
    let place = |bytes: &[u8]| {
        let address = device.memory().allocate(bytes.len() as u64).unwrap();
        device.memory().write(address, bytes).unwrap();
        address
    };
    let tensor = |bytes: Vec<u8>, dtype, shape: &[u64]| {
        msa_core::Tensor::contiguous(place(&bytes), dtype, shape).unwrap()
    };
    use msa_core::{DType, Role};
    let args = msa_core::args::Args::new()
        .with(Role::Scores, tensor(vec![0; 4 * 3 * 4], DType::F32, &[1, 4, 3]))
        .with(Role::QueryOffsets, tensor([0_i32, 1].map(i32::to_le_bytes).concat(), DType::I32, &[2]))
        .with(Role::KvLengths, tensor(300_i32.to_le_bytes().to_vec(), DType::I32, &[1]))
        .with(Role::BlockIndices, tensor(vec![0; 4 * 16 * 4], DType::I32, &[1, 4, 16]));
    let workspace = msa_core::backend::Span { address: workspace, bytes: plan.workspace_bytes };
    // SAFETY: everything was placed on this device and stays.
    unsafe { prepared.enqueue(msa_core::backend::Stream(0), &args, workspace) }.unwrap();
}

/// What the library was told.
fn ranges(library: &Path) -> String {
    // SAFETY: the library of this package has no initialisers.
    let library = unsafe { libloading::Library::new(library) }.unwrap();
    // SAFETY: the type is that of msa_fake_hip.
    let ranges: libloading::Symbol<'_, extern "C" fn(*mut u8, usize) -> usize> =
        unsafe { library.get(b"fakeRoctxRanges") }.unwrap();
    let mut text = vec![0; 1 << 10];
    let length = ranges(text.as_mut_ptr(), text.len());
    String::from_utf8(text[..length].to_vec()).unwrap()
}
