//! The first bytes of a library: the dynamic linker's own words for a wrong one are poor, and a plugin for another
//! machine should say so.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of an ELF-64 header and of a program header (ELF-64 object file format, version 1.5).
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

/// Class of 64-bit objects, and the little-endian encoding.
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;

/// Type of shared objects, and of segments that are mapped.
const SHARED: u16 = 3;
const LOADED: u32 = 1;

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
    let unreadable = |error: std::io::Error| format!("the file cannot be read: {error}");
    let mut file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let mut header = Vec::new();
    (&mut file).take(HEADER as u64).read_to_end(&mut header).map_err(unreadable)?;
    let table = check_header(&header)?;
    file.seek(SeekFrom::Start(table.offset)).map_err(unreadable)?;
    let mut segments = Vec::new();
    file.take(u64::from(table.count) * PROGRAM_HEADER as u64)
        .read_to_end(&mut segments)
        .map_err(unreadable)?;
    check_segments(&segments, table, length)
}

/// Where the program headers stand.
#[derive(Clone, Copy)]
struct Table {
    offset: u64,
    count: u16,
}

fn check_header(header: &[u8]) -> Result<Table, String> {
    let none = || "not a library: no ELF header".to_owned();
    if header.get(..4) != Some(b"\x7fELF") || header.len() < HEADER {
        return Err(none());
    }
    let byte = |at: usize| header.get(at).copied().unwrap_or(0);
    let (class, encoding) = (byte(4), byte(5));
    if class != CLASS_64 || encoding != LITTLE_ENDIAN {
        return Err(format!(
            "wrong ELF class: want 64-bit little-endian, got class {class}, encoding {encoding}"
        ));
    }
    let half = |at| array(header, at).map(u16::from_le_bytes).ok_or_else(none);
    let kind = half(16)?;
    if kind != SHARED {
        return Err(format!("not a library: ELF type {kind}, a shared object is {SHARED}"));
    }
    let machine = half(18)?;
    if let Some(host) = HOST.filter(|host| *host != machine) {
        return Err(format!("built for another machine: want {}, got {}", name(host), name(machine)));
    }
    let size = usize::from(half(54)?);
    if size != PROGRAM_HEADER {
        return Err(format!("damaged: program headers of {size} bytes, want {PROGRAM_HEADER}"));
    }
    let offset = array(header, 32).map(u64::from_le_bytes).ok_or_else(none)?;
    Ok(Table { offset, count: half(56)? })
}

/// Every mapped segment lies inside the file: the dynamic linker of glibc maps what the headers say, and touching a
/// page beyond the end kills the process.
fn check_segments(headers: &[u8], table: Table, length: u64) -> Result<(), String> {
    let truncated = || format!("truncated: the file has {length} bytes, its headers name more");
    let (all, rest) = headers.as_chunks::<PROGRAM_HEADER>();
    if all.len() != usize::from(table.count) || !rest.is_empty() {
        return Err(truncated());
    }
    for header in all {
        let kind = array(header, 0).map(u32::from_le_bytes);
        let (offset, bytes) =
            (array(header, 8).map(u64::from_le_bytes), array(header, 32).map(u64::from_le_bytes));
        let end = offset.zip(bytes).and_then(|(offset, bytes)| offset.checked_add(bytes));
        if kind == Some(LOADED) && end.is_none_or(|end| end > length) {
            return Err(truncated());
        }
    }
    Ok(())
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
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
        let mut bytes = vec![0; HEADER];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, encoding]);
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = PROGRAM_HEADER as u8;
        bytes[56] = 1;
        bytes
    }

    #[test]
    fn headers_of_other_machines_are_named() {
        let host = HOST.unwrap_or(X86_64);
        let other = if host == X86_64 { AARCH64 } else { X86_64 };
        assert_eq!(check_header(&header(2, 1, 3, host)).unwrap().count, 1);
        let wrong = |header: Vec<u8>| check_header(&header).err().unwrap();
        assert!(wrong(header(1, 1, 3, 3)).starts_with("wrong ELF class"));
        assert!(wrong(header(2, 2, 3, host)).starts_with("wrong ELF class"));
        assert!(wrong(header(2, 1, 2, host)).starts_with("not a library: ELF type 2"));
        assert!(wrong(header(2, 1, 3, other)).starts_with("built for another machine"));
        assert!(wrong(header(2, 1, 3, host)[..63].to_vec()).starts_with("not a library: no ELF"));
        assert!(wrong(b"#!/bin/sh".to_vec()).starts_with("not a library: no ELF"));
    }

    #[test]
    fn segments_beyond_the_end_are_seen() {
        let table = Table { offset: 64, count: 1 };
        let segment = |kind: u32, offset: u64, bytes: u64| {
            let mut header = vec![0; PROGRAM_HEADER];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&offset.to_le_bytes());
            header[32..40].copy_from_slice(&bytes.to_le_bytes());
            header
        };
        check_segments(&segment(LOADED, 100, 900), table, 1000).unwrap();
        check_segments(&segment(7, 100, 901), table, 1000).unwrap();
        for (offset, bytes) in [(100, 901), (u64::MAX, 1), (1001, 0)] {
            assert!(check_segments(&segment(LOADED, offset, bytes), table, 1000).is_err());
        }
        assert!(check_segments(&segment(LOADED, 0, 0)[..55], table, 1000).is_err());
    }
}
