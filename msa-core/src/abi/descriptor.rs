//! Operations, options and plans as text inside flat headers.

use std::collections::HashMap;

use super::border::{fill_buffer, read_array, read_text};
use super::table::{MsaBuffer, MsaOp, MsaPlan, MsaPlanRequest, MsaText};
use crate::error::{Error, Result, require};
use crate::lengths::{Lengths, MAX_ROWS, RequestBound};
use crate::op::{OP_REVISION, Op};
use crate::plan::{PLAN_VERSION, Plan, PlanOptions};
use crate::text::{self, Leaf, Node, Visitor};

/// Changes the leaves of `root` that lines `name = value` of `source` name; the others keep their value. Blank lines and
/// lines that start with `#` are skipped. A name that `root` does not have, or that stands twice, is an error.
pub fn amend(root: &mut dyn Node, path: &str, source: &str) -> Result<()> {
    let mut lines = HashMap::new();
    for (index, line) in source.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let number = index + 1;
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| Error::invalid(path, format!("line {number} to be 'name = value'"), line))?;
        if lines.insert(name.trim(), (number, value.trim())).is_some() {
            return Err(Error::invalid(name.trim(), "one line", format!("another one, line {number}")));
        }
    }
    let mut amender = Amender { lines };
    root.visit(path, &mut amender)?;
    match amender.lines.into_iter().min_by_key(|(_, (number, _))| *number) {
        None => Ok(()),
        Some((name, (number, _))) => {
            Err(Error::invalid(path, "fields that it has", format!("{name}, line {number}")))
        }
    }
}

struct Amender<'a> {
    lines: HashMap<&'a str, (usize, &'a str)>,
}

impl Visitor for Amender<'_> {
    fn leaf(&mut self, path: &str, leaf: &mut dyn Leaf) -> Result<()> {
        let Some((number, value)) = self.lines.remove(path) else { return Ok(()) };
        leaf.parse(value).map_err(|want| Error::invalid(path, want, format!("{value}, line {number}")))
    }
}

/// The text of an operation.
pub(crate) fn op_text(op: &Op) -> Result<String> {
    text::print(&mut op.clone(), "op")
}

/// The header of an operation whose text the caller keeps.
pub(crate) fn op_header(text: &str) -> MsaOp {
    MsaOp { struct_size: size_of::<MsaOp>() as u32, revision: OP_REVISION, text: MsaText::of(text) }
}

/// The operation behind a header; another meaning than ours is refused rather than computed differently.
///
/// # Safety
/// The text of `header` is valid for its length.
pub(crate) unsafe fn read_op(header: &MsaOp) -> Result<Op> {
    require(header.revision == OP_REVISION, "op.revision", OP_REVISION, header.revision)?;
    // SAFETY: by this function's contract.
    let text = unsafe { read_text(header.text, "op.text") }?;
    let mut op = Op::default();
    amend(&mut op, "op", &text)?;
    op.validated()
}

/// What a plan is asked for.
///
/// # Safety
/// The arrays and texts of `request` are valid for their lengths.
pub(crate) unsafe fn read_request(request: &MsaPlanRequest) -> Result<(Op, Lengths, PlanOptions)> {
    // SAFETY: by this function's contract.
    let op = unsafe { read_op(&request.op) }?;
    // SAFETY: as above.
    let bounds = unsafe { read_array(request.requests, request.request_count, MAX_ROWS, "requests") }?;
    let lengths = Lengths::new(
        bounds.iter().map(|bound| RequestBound { query_len: bound.query_len, kv_len: bound.kv_len }),
    )?;
    // SAFETY: as above.
    let text = unsafe { read_text(request.options, "options") }?;
    let mut options = PlanOptions::default();
    amend(&mut options, "options", &text)?;
    Ok((op, lengths, options))
}

/// The text of options.
pub(crate) fn options_text(options: &PlanOptions) -> Result<String> {
    text::print(&mut options.clone(), "options")
}

/// Fills a plan that the caller allocated.
///
/// # Safety
/// The buffer of `out` is valid for its capacity.
pub(crate) unsafe fn fill_plan(out: &mut MsaPlan, plan: &Plan, text: &str) -> Result<()> {
    out.version = plan.version;
    out.op_revision = plan.op_revision;
    out.batch_invariant = u32::from(plan.batch_invariant);
    out.workspace_bytes = plan.workspace_bytes;
    out.hash = hash_number(&plan.hash)?;
    // SAFETY: by this function's contract.
    unsafe { fill_buffer(&mut out.text, text) };
    Ok(())
}

/// The header of a plan whose text the caller keeps.
pub(crate) fn plan_header(plan: &Plan, text: &str) -> Result<MsaPlan> {
    Ok(MsaPlan {
        struct_size: size_of::<MsaPlan>() as u32,
        version: plan.version,
        op_revision: plan.op_revision,
        batch_invariant: u32::from(plan.batch_invariant),
        workspace_bytes: plan.workspace_bytes,
        hash: hash_number(&plan.hash)?,
        text: MsaBuffer {
            text: text.as_ptr().cast_mut(),
            capacity: text.len() as u64,
            length: text.len() as u64,
        },
    })
}

/// The plan behind a header: parsed, and refused unless version, meaning, hash and header agree with the text and the
/// plan verifies.
///
/// # Safety
/// The text of `header` is valid for its length.
pub(crate) unsafe fn read_plan(header: &MsaPlan) -> Result<Plan> {
    let text = MsaText { text: header.text.text.cast_const(), length: header.text.length };
    require(
        text.length <= header.text.capacity,
        "plan.text.length",
        format!("at most the capacity {}", header.text.capacity),
        text.length,
    )?;
    // SAFETY: by this function's contract; the length is within the capacity.
    let text = unsafe { read_text(text, "plan.text") }?;
    let plan = Plan::from_text(&text)?;
    check_plan(&plan, header)?;
    plan.verify()?;
    Ok(plan)
}

/// Does a parsed plan hold, and does its header tell the truth?
pub(crate) fn check_plan(plan: &Plan, header: &MsaPlan) -> Result<()> {
    let wrong =
        |what: &str, want: String, got: String| Error::Plan(format!("{what}: want {want}, got {got}"));
    let same = |what: &str, want: u64, got: u64| {
        if want == got { Ok(()) } else { Err(wrong(what, want.to_string(), got.to_string())) }
    };
    same("version", u64::from(PLAN_VERSION), u64::from(plan.version))?;
    same("op_revision", u64::from(OP_REVISION), u64::from(plan.op_revision))?;
    let computed = plan.computed_hash();
    if computed != plan.hash {
        return Err(wrong("hash", computed, plan.hash.clone()));
    }
    same("header.version", u64::from(plan.version), u64::from(header.version))?;
    same("header.op_revision", u64::from(plan.op_revision), u64::from(header.op_revision))?;
    same("header.batch_invariant", u64::from(plan.batch_invariant), u64::from(header.batch_invariant))?;
    same("header.workspace_bytes", plan.workspace_bytes, header.workspace_bytes)?;
    same("header.hash", hash_number(&plan.hash)?, header.hash)?;
    plan.op.clone().validated()?;
    plan.lengths().map(|_| ())
}

fn hash_number(hash: &str) -> Result<u64> {
    u64::from_str_radix(hash, 16).map_err(|_| Error::Plan(format!("hash: want 16 digits, got '{hash}'")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::OpKind;
    use crate::variant::Variant;

    const VARIANTS: &[Variant] = &[Variant {
        name: "select.f32.cpu.any",
        op: OpKind::Select,
        arch: crate::device::Arch::Cpu,
        arithmetic: "f32",
        max_query_len: None,
        needs: &[],
    }];

    #[test]
    fn operations_cross_whole_or_by_the_fields_that_differ() {
        for kind in OpKind::ALL {
            let op = Op::of(kind);
            let text = op_text(&op).unwrap();
            // SAFETY: the text lives in this frame.
            assert_eq!(unsafe { read_op(&op_header(&text)) }.unwrap(), op);
        }
        let short = "op.kind = select\n# a comment\n\nop.geometry.top_k = 4\n";
        // SAFETY: as above.
        let op = unsafe { read_op(&op_header(short)) }.unwrap();
        let mut want = crate::op::Select::default();
        want.geometry.top_k = 4;
        assert_eq!(op, Op::Select(want));
    }

    #[test]
    fn hostile_operations_are_errors_that_name_the_field() {
        let error = |text: &str| {
            // SAFETY: the text lives for the call.
            unsafe { read_op(&op_header(text)) }.unwrap_err().to_string()
        };
        assert_eq!(
            error("op.kind = dance"),
            "op.kind: want append, index_score, select, sparse_decode, \
            sparse_prefill, merge, select_merge, step, got dance, line 1"
        );
        assert_eq!(
            error("op.kind = merge\nop.colour = red"),
            "op: want fields that it has, got op.colour, line 2"
        );
        assert_eq!(
            error("op.kind = merge\nop.kind = merge"),
            "op.kind: want one line, got another one, line 2"
        );
        assert_eq!(error("nonsense"), "op: want line 1 to be 'name = value', got nonsense");
        assert!(
            error("op.kind = select\nop.geometry.top_k = 65").starts_with("geometry.top_k: want 1 to 64")
        );
        let mut old = op_header("op.kind = merge");
        old.revision = OP_REVISION + 1;
        // SAFETY: the text lives for the process.
        assert!(unsafe { read_op(&old) }.unwrap_err().to_string().starts_with("op.revision"));
    }

    #[test]
    fn a_plan_whose_header_lies_or_whose_text_was_changed_is_refused() {
        let lengths = Lengths::upto(2, 1, 1000).unwrap();
        let traits = crate::device::DeviceTraits::cpu(4);
        let plan = crate::plan::plan(
            &Op::of(OpKind::Select),
            &lengths,
            &traits,
            VARIANTS,
            &PlanOptions::default(),
            "t",
        );
        let plan = plan.unwrap();
        let text = plan.to_text();
        let header = plan_header(&plan, &text).unwrap();
        // SAFETY: the text lives in this frame.
        assert_eq!(unsafe { read_plan(&header) }.unwrap(), plan);
        let refused = |change: &dyn Fn(&mut MsaPlan)| {
            let mut header = header;
            change(&mut header);
            // SAFETY: as above; lengths are only made smaller or refused.
            unsafe { read_plan(&header) }.unwrap_err().to_string()
        };
        assert!(refused(&|h| h.workspace_bytes += 256).contains("header.workspace_bytes"));
        assert!(refused(&|h| h.hash ^= 1).contains("header.hash"));
        assert!(refused(&|h| h.version += 1).contains("header.version"));
        assert!(refused(&|h| h.batch_invariant = 2).contains("header.batch_invariant"));
        assert!(refused(&|h| h.text.length -= 30).contains("plan"));
        assert!(refused(&|h| h.text.length += 1).contains("plan.text.length"));
        let mut changed = Plan { workspace_bytes: plan.workspace_bytes + 256, ..plan.clone() };
        let refused_whole = |plan: &Plan| {
            let text = plan.to_text();
            // SAFETY: as above.
            unsafe { read_plan(&plan_header(plan, &text).unwrap()) }.unwrap_err().to_string()
        };
        assert!(refused_whole(&changed).starts_with("plan: hash: want"), "the hash is of the old text");
        changed.hash = changed.computed_hash();
        assert!(refused_whole(&changed).starts_with("plan: "), "the hash is right, the plan is not");
    }
}
