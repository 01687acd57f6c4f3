//! LLVM's text of an instruction, taken apart.

use super::disassemble::Line;

/// An operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operand {
    /// Vector registers `first .. first + count`.
    Vector {
        /// First.
        first: u16,
        /// How many.
        count: u16,
    },
    /// Scalar registers, by their encoding: 0..=101, `vcc` 106 and 107, `m0` 124, `exec` 126 and 127.
    Scalar {
        /// First.
        first: u16,
        /// How many.
        count: u16,
    },
    /// The condition code.
    Condition,
    /// No address register.
    Off,
    /// An integer.
    Integer(i64),
    /// A floating-point constant.
    Float(f64),
}

/// An operand with its modifiers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Argument {
    /// The operand.
    pub operand: Operand,
    /// Sign flipped.
    pub negated: bool,
    /// Sign cleared (before it is flipped).
    pub absolute: bool,
}

/// A parsed instruction.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// Where it stands.
    pub line: Line,
    /// Without the suffix of its encoding: `v_and_b32`, not `v_and_b32_e32`.
    pub mnemonic: String,
    /// Operands in order, destinations first.
    pub arguments: Vec<Argument>,
    /// `offset:16`, `sc0`, `vmcnt(0)` as name and value; a flag has an empty value.
    pub modifiers: Vec<(String, String)>,
}

impl Instruction {
    /// Parses a line.
    pub fn parse(line: Line) -> Self {
        let (mnemonic, rest) = line.text.split_once(' ').unwrap_or((&line.text, ""));
        let (mut arguments, mut modifiers) = (Vec::new(), Vec::new());
        for token in tokens(rest) {
            match argument(token) {
                Some(argument) => arguments.push(argument),
                None => modifiers.push(modifier(token)),
            }
        }
        let mnemonic = bare(mnemonic).to_owned();
        Self { line, mnemonic, arguments, modifiers }
    }

    /// The value of a modifier; empty for a flag.
    pub fn modifier(&self, name: &str) -> Option<&str> {
        self.modifiers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The number of a modifier, or 0.
    pub fn number(&self, name: &str) -> i64 {
        self.modifier(name).and_then(parse_integer).unwrap_or(0)
    }

    /// Whether a flag is there.
    pub fn flag(&self, name: &str) -> bool {
        self.modifier(name).is_some()
    }

    /// A list of bits, `op_sel:[0,1]`.
    pub fn bits(&self, name: &str) -> Option<Vec<bool>> {
        let list = self.modifier(name)?.strip_prefix('[')?.strip_suffix(']')?;
        Some(list.split(',').map(|bit| bit.trim() == "1").collect())
    }
}

/// Without the suffix that tells encodings apart.
pub fn bare(mnemonic: &str) -> &str {
    let suffix = ["_e32", "_e64", "_sdwa", "_dpp"].into_iter().find(|suffix| mnemonic.ends_with(suffix));
    suffix.and_then(|suffix| mnemonic.strip_suffix(suffix)).unwrap_or(mnemonic)
}

/// Splits at commas and blanks outside brackets.
fn tokens(text: &str) -> Vec<&str> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices().chain([(text.len(), ',')]) {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            ',' | ' ' if depth == 0 => {
                if start < at {
                    found.push(&text[start..at]);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

fn argument(token: &str) -> Option<Argument> {
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let (negated, rest) = match token.strip_prefix('-').filter(|rest| !is_number(rest)) {
        Some(rest) => (true, rest),
        None => (false, token),
    };
    let (absolute, rest) = match rest.strip_prefix('|').and_then(|rest| rest.strip_suffix('|')) {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let operand = register(rest).or_else(|| constant(rest))?;
    Some(Argument { operand, negated, absolute })
}

fn register(text: &str) -> Option<Operand> {
    let scalar = |first, count| Some(Operand::Scalar { first, count });
    match text {
        "vcc" => return scalar(106, 2),
        "vcc_lo" => return scalar(106, 1),
        "vcc_hi" => return scalar(107, 1),
        "m0" => return scalar(124, 1),
        "exec" => return scalar(126, 2),
        "exec_lo" => return scalar(126, 1),
        "exec_hi" => return scalar(127, 1),
        "scc" | "src_scc" => return Some(Operand::Condition),
        "off" | "null" => return Some(Operand::Off),
        _ => {}
    }
    let bank = text.get(..1)?;
    let (first, last) = range(text.get(1..)?)?;
    let count = last.checked_sub(first)?.checked_add(1)?;
    match bank {
        "v" => Some(Operand::Vector { first, count }),
        "s" => scalar(first, count),
        _ => None,
    }
}

/// `7`, `[7]` or `[4:7]`.
fn range(text: &str) -> Option<(u16, u16)> {
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(inner) => {
            let (first, last) = inner.split_once(':').unwrap_or((inner, inner));
            Some((first.parse().ok()?, last.parse().ok()?))
        }
        None => text.parse().ok().map(|register| (register, register)),
    }
}

fn constant(text: &str) -> Option<Operand> {
    parse_integer(text).map(Operand::Integer).or_else(|| {
        let is_number = text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
        if is_number { text.parse().ok().map(Operand::Float) } else { None }
    })
}

fn parse_integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok()? as i64,
        None => digits.parse().ok()?,
    };
    Some(if negative { value.wrapping_neg() } else { value })
}

fn modifier(token: &str) -> (String, String) {
    if let Some((name, value)) = token.split_once(':') {
        return (name.to_owned(), value.to_owned());
    }
    match token.strip_suffix(')').and_then(|token| token.split_once('(')) {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (token.to_owned(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Instruction {
        Instruction::parse(Line { address: 0, bytes: 4, text: text.to_owned() })
    }

    #[test]
    fn operands_and_modifiers_are_told_apart() {
        let load = parse("global_load_dwordx4 v[4:7], v2, s[6:7] offset:-16 sc0 sc1");
        let operands: Vec<Operand> = load.arguments.iter().map(|argument| argument.operand).collect();
        let wanted = [
            Operand::Vector { first: 4, count: 4 },
            Operand::Vector { first: 2, count: 1 },
            Operand::Scalar { first: 6, count: 2 },
        ];
        assert_eq!(operands, wanted);
        assert_eq!((load.number("offset"), load.flag("sc1"), load.flag("nt")), (-16, true, false));
        let wait = parse("s_waitcnt vmcnt(3) lgkmcnt(0)");
        assert_eq!((wait.number("vmcnt"), wait.modifier("expcnt")), (3, None));
    }

    #[test]
    fn signs_constants_and_lists() {
        let fma = parse("v_fma_f32 v0, -|v1|, 0.5, -1 op_sel:[0,1,1]");
        let argument = |index: usize| fma.arguments[index];
        assert!(argument(1).negated && argument(1).absolute);
        assert_eq!((argument(2).operand, argument(3).operand), (Operand::Float(0.5), Operand::Integer(-1)));
        assert_eq!(fma.bits("op_sel"), Some(vec![false, true, true]));
        let compare = parse("v_cmp_lt_u32_e32 vcc, 0x80000000, v3");
        assert_eq!(compare.mnemonic, "v_cmp_lt_u32");
        assert_eq!(compare.arguments[0].operand, Operand::Scalar { first: 106, count: 2 });
        assert_eq!(compare.arguments[1].operand, Operand::Integer(0x8000_0000));
    }
}
