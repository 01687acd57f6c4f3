use msa_emu::gfx9::*;
use msa_emu::gfx9::code_object::CodeObject;
#[test]
fn all() {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("plugins/rocm");
    for e in std::fs::read_dir(dir).unwrap() {
        let p = e.unwrap().path(); if p.extension().is_none_or(|x| x != "hsaco") { continue; }
        let o = CodeObject::parse(&std::fs::read(&p).unwrap()).unwrap();
        for name in o.kernels().keys() {
            match Kernel::load(&o, name) { Ok(k) => println!("{name} ok {} {:?}", k.instructions(), k.code().properties), Err(e) => println!("{name} {e}") }
        }
    }
}
