//! Hostile answers of an entry: a plugin that can be trusted as far as anything can, or a refusal; never a panic.

use std::cell::Cell;
use std::mem::offset_of;
use std::path::Path;

use proptest::prelude::*;

use super::*;

/// What the entry answers; functions are bits in the order of the table.
#[derive(Debug, Clone, Copy)]
struct Answer {
    status: u32,
    size: u32,
    major: u32,
    minor: u32,
    texts: [Words; 4],
    functions: u32,
    said: u64,
}

/// A text of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Words {
    Name,
    Sentence,
    Long,
    NotUtf8,
    Empty,
    Null,
    Endless,
}

/// Functions of the table from `device_count` on, the first of which are required.
const FUNCTIONS: u32 = 17;
const REQUIRED: u32 = (1 << 12) - 1;

thread_local! {
    static ANSWER: Cell<Option<Answer>> = const { Cell::new(None) };
}

impl Words {
    fn text(self) -> MsaText {
        match self {
            Self::Name => MsaText::of("cuda_2"),
            Self::Sentence => MsaText::of("Version 1, with blanks"),
            Self::Long => MsaText::of("a_name_that_is_longer_than_thirty_two"),
            Self::NotUtf8 => MsaText { text: b"ab\xff".as_ptr(), length: 3 },
            Self::Empty => MsaText::EMPTY,
            Self::Null => MsaText { text: ptr::null(), length: 5 },
            Self::Endless => MsaText { text: b"ab".as_ptr(), length: u64::MAX },
        }
    }

    fn is_text(self) -> bool {
        !matches!(self, Self::NotUtf8 | Self::Null | Self::Endless)
    }
}

/// Answers as the test of this thread asked.
unsafe extern "C" fn entry(_: *const MsaHostInfo, out: *mut *const MsaPluginApi, diag: *mut MsaDiag) -> u32 {
    let Some(answer) = ANSWER.get() else { return status::INVALID };
    let [name, version, build, arches] = answer.texts.map(Words::text);
    let (struct_size, abi_major, abi_minor) = (answer.size, answer.major, answer.minor);
    let known = MsaPluginApi {
        struct_size,
        abi_major,
        abi_minor,
        op_revision: 1,
        name,
        version,
        build,
        arches,
        ..crate::abi::zeroed()
    };
    let table = Box::leak(Box::new(known));
    let first = (&raw mut *table).cast::<u8>().wrapping_add(offset_of!(MsaPluginApi, device_count));
    for bit in 0..FUNCTIONS {
        let pointer = if answer.functions >> bit & 1 == 1 { stub as *const () } else { ptr::null() };
        // SAFETY: a function of the table, which is a pointer that may be null.
        unsafe { first.cast::<*const ()>().wrapping_add(bit as usize).write(pointer) };
    }
    // SAFETY: the host's diagnosis, whose length this entry lies about.
    unsafe { (*diag).length = answer.said };
    // SAFETY: the host's pointer.
    unsafe { out.write(table) };
    answer.status
}

/// Stands for every function; negotiating calls none.
extern "C" fn stub() {}

fn words() -> impl Strategy<Value = Words> {
    prop_oneof![
        6 => Just(Words::Name),
        1 => Just(Words::Sentence),
        1 => Just(Words::Long),
        1 => Just(Words::NotUtf8),
        1 => Just(Words::Empty),
        1 => Just(Words::Null),
        1 => Just(Words::Endless),
    ]
}

fn answers() -> impl Strategy<Value = Answer> {
    let size = prop_oneof![6 => Just(224_u32), 2 => (0..9000_u32).prop_map(|n| n * 8), 1 => any::<u32>()];
    let functions =
        prop_oneof![4 => Just(u32::MAX), 1 => (0..FUNCTIONS).prop_map(|n| !(1 << n)), 1 => any::<u32>()];
    let version =
        (prop_oneof![6 => Just(1_u32), 1 => any::<u32>()], prop_oneof![3 => Just(0_u32), 1 => any::<u32>()]);
    let status = prop_oneof![8 => Just(0_u32), 1 => 0..12_u32, 1 => any::<u32>()];
    let texts = [words(), words(), words(), words()];
    (status, size, version, texts, functions, any::<u64>()).prop_map(
        |(status, size, (major, minor), texts, functions, said)| Answer {
            status,
            size,
            major,
            minor,
            texts,
            functions,
            said,
        },
    )
}

/// The policy by which an answer must be refused, in the order in which it is looked at.
fn broken(answer: &Answer) -> Option<Policy> {
    let fits = answer.size == 224 || (answer.minor > 0 && (224..=65536).contains(&answer.size));
    match *answer {
        Answer { status: status::ABI_MISMATCH, .. } => Some(Policy::SameMajor),
        Answer { status: status::PANIC, .. } => Some(Policy::NoUnwinding),
        Answer { status: status::UNAVAILABLE, .. } => Some(Policy::Unavailable),
        Answer { status: 1.., .. } => Some(Policy::PlainNumbers),
        Answer { major, .. } if major != ABI_MAJOR => Some(Policy::SameMajor),
        Answer { size, .. } if !fits || size % 8 != 0 => Some(Policy::StructSize),
        Answer { texts: [name, rest @ ..], .. }
            if name != Words::Name || !rest.iter().all(|t| t.is_text()) =>
        {
            Some(Policy::Lifetimes)
        }
        Answer { functions, .. } if functions & REQUIRED != REQUIRED => Some(Policy::RequiredFunctions),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_tables_are_refused_by_the_policy_that_they_break(answer in answers()) {
        ANSWER.set(Some(answer));
        let path = Path::new("/somewhere/libmsa_x.so");
        match negotiate(path, entry, "") {
            Ok(plugin) => {
                prop_assert_eq!(broken(&answer), None);
                prop_assert_eq!((plugin.name(), plugin.abi()), ("cuda_2", (answer.major, answer.minor)));
            }
            Err(refusal) => {
                prop_assert_eq!(Some(refusal.policy), broken(&answer));
                prop_assert!(refusal.path == path && !refusal.reason.is_empty());
            }
        }
    }
}
