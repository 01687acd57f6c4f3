//! Whatever the bytes are, the answer is a file or an error.

use proptest::prelude::*;

use super::super::*;
use super::draft::{Draft, decode, prefill, projection};

/// Parses with a companion of the same bytes; returns whether it was accepted. A panic fails the test.
fn survives(bytes: &[u8]) -> bool {
    match parse_input(bytes, |_| Ok(bytes.to_vec())) {
        Ok(file) => {
            assert!(file.prefill.is_some() || file.decode.is_some() || file.projection.is_some());
            true
        }
        Err(error) => error.to_string().is_empty(),
    }
}

fn drafts() -> impl Strategy<Value = Draft> {
    let companion = || prefill().without(&["k"]).with_meta("companion_of", "other");
    prop_oneof![Just(prefill()), Just(decode()), Just(projection()), Just(companion())]
}

/// Numbers that headers are attacked with.
fn hostile_number() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("0".to_owned()),
        Just("-1".to_owned()),
        Just("1e308".to_owned()),
        Just(u64::MAX.to_string()),
        Just((u64::MAX / 2 + 1).to_string()),
        Just((1u64 << 61).to_string()),
        Just("99999999999999999999999".to_owned()),
        (0u64..64).prop_map(|number| number.to_string()),
        Just("[[[[".to_owned()),
        Just("null".to_owned()),
    ]
}

/// Replaces the number that begins at or after character `at` of the header by `number`, and repairs the length.
fn renumber(bytes: &[u8], at: usize, number: &str) -> Vec<u8> {
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, body) = (&bytes[8..8 + header_len], &bytes[8 + header_len..]);
    let digit_from = |from: usize| header[from..].iter().position(u8::is_ascii_digit).map(|skip| from + skip);
    let begin = digit_from(at % header.len()).or_else(|| digit_from(0)).unwrap();
    let end = begin + header[begin..].iter().position(|byte| !byte.is_ascii_digit()).unwrap();
    let header = [&header[..begin], number.as_bytes(), &header[end..]].concat();
    [&(header.len() as u64).to_le_bytes(), &header[..], body].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(!survives(&bytes));
    }

    #[test]
    fn random_text_behind_a_right_length(text in "[\\[\\]{}\":,a-zA-Z_0-9 ]{0,80}", body in 0usize..64) {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len() + body, 0);
        prop_assert!(!survives(&bytes));
    }

    #[test]
    fn mutated_bytes(draft in drafts(), changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..8)) {
        let mut bytes = draft.bytes();
        let len = bytes.len();
        for (at, value) in changes {
            bytes[at % len] = value;
        }
        survives(&bytes);
    }

    #[test]
    fn mutated_numbers(draft in drafts(), changes in prop::collection::vec((any::<usize>(), hostile_number()), 1..4)) {
        let renumbered = changes.iter().fold(draft.bytes(), |bytes, (at, number)| renumber(&bytes, *at, number));
        survives(&renumbered);
    }

    #[test]
    fn cut_short(draft in drafts(), keep in any::<usize>()) {
        let bytes = draft.bytes();
        prop_assert!(!survives(&bytes[..keep % bytes.len()]));
    }

    #[test]
    fn mutated_metadata(draft in drafts(), which in any::<usize>(), value in hostile_number()) {
        let key = draft.meta.keys().nth(which % draft.meta.len()).unwrap().clone();
        survives(&draft.with_meta(&key, &value).bytes());
    }
}

#[test]
fn the_drafts_themselves_are_accepted() {
    for draft in [prefill(), decode(), projection()] {
        assert!(survives(&draft.bytes()));
    }
}
