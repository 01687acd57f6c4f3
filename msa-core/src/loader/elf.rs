//! The first bytes of a library: the dynamic linker's own words for a wrong one are poor, and a plugin for another
//! machine should say so.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of the header that are looked at (ELF-64 object file format, version 1.5, "ELF header").
const HEADER: usize = 20;

/// Class of 64-bit objects, and the little-endian encoding.
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;

/// Type of shared objects.
const SHARED: u16 = 3;

/// Machine numbers (`e_machine`) of the hosts that exist.
const X86_64: u16 = 62;
const AARCH64: u16 = 183;

#[cfg(target_arch = "x86_64")]
const HOST: Option<u16> = Some(X86_64);
#[cfg(target_arch = "aarch64")]
const HOST: Option<u16> = Some(AARCH64);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const HOST: Option<u16> = None;

/// `Err` says why the file at `path` is no library for this process.
pub(super) fn check(path: &Path) -> Result<(), String> {
    if cfg!(not(target_os = "linux")) {
        return Ok(());
    }
    let mut header = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEADER as u64).read_to_end(&mut header));
    read.map_err(|error| format!("the file cannot be read: {error}"))?;
    check_header(&header)
}

fn check_header(header: &[u8]) -> Result<(), String> {
    let &[
        0x7f,
        b'E',
        b'L',
        b'F',
        class,
        encoding,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        kind0,
        kind1,
        machine0,
        machine1,
    ] = header
    else {
        return Err("not a library: no ELF header".to_owned());
    };
    if class != CLASS_64 || encoding != LITTLE_ENDIAN {
        return Err(format!(
            "wrong ELF class: want 64-bit little-endian, got class {class}, encoding {encoding}"
        ));
    }
    let kind = u16::from_le_bytes([kind0, kind1]);
    if kind != SHARED {
        return Err(format!("not a library: ELF type {kind}, a shared object is {SHARED}"));
    }
    let machine = u16::from_le_bytes([machine0, machine1]);
    match HOST {
        Some(host) if host != machine => {
            Err(format!("built for another machine: want {}, got {}", name(host), name(machine)))
        }
        _ => Ok(()),
    }
}

fn name(machine: u16) -> String {
    match machine {
        X86_64 => "x86-64".to_owned(),
        AARCH64 => "aarch64".to_owned(),
        other => format!("ELF machine {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: u8, encoding: u8, kind: u16, machine: u16) -> Vec<u8> {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', class, encoding, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(kind.to_le_bytes());
        bytes.extend(machine.to_le_bytes());
        bytes
    }

    #[test]
    fn headers_of_other_machines_are_named() {
        let host = HOST.unwrap_or(X86_64);
        let other = if host == X86_64 { AARCH64 } else { X86_64 };
        check_header(&header(2, 1, 3, host)).unwrap();
        let wrong = |header: Vec<u8>| check_header(&header).unwrap_err();
        assert!(wrong(header(1, 1, 3, 3)).starts_with("wrong ELF class"));
        assert!(wrong(header(2, 2, 3, host)).starts_with("wrong ELF class"));
        assert!(wrong(header(2, 1, 2, host)).starts_with("not a library: ELF type 2"));
        assert!(wrong(header(2, 1, 3, other)).starts_with("built for another machine"));
        assert!(wrong(header(2, 1, 3, host)[..19].to_vec()).starts_with("not a library: no ELF"));
        assert!(wrong(b"#!/bin/sh".to_vec()).starts_with("not a library: no ELF"));
    }
}
