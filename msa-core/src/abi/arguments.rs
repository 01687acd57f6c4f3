//! The arguments of a run, flat and back.

use super::border::{borrow_array, read_growing, zeroed};
use super::numbers::Numbered;
use super::table::{
    MAX_TENSORS, MsaIndexCache, MsaKvCache, MsaRun, MsaSpan, MsaTensor, MsaView, PRESENT_KEY_SCALE,
    PRESENT_NULL_PAGE, PRESENT_VALUE_SCALE,
};
use crate::args::{Args, Role};
use crate::backend::{Span, Stream};
use crate::cache::{CacheFormat, IndexCache, KvCache, VScaleOrder, View};
use crate::error::{Error, Result, require, require_at};
use crate::tensor::{DType, MAX_RANK, Tensor};

/// Arguments in flat form; on the stack, so that enqueueing allocates nothing on this side.
pub(crate) struct Flat {
    tensors: [MsaTensor; MAX_TENSORS],
    count: u32,
    kv_cache: Option<MsaKvCache>,
    index_cache: Option<MsaIndexCache>,
}

impl Flat {
    /// Flattens `args`.
    pub(crate) fn of(args: &Args) -> Result<Self> {
        let count = args.tensors().len();
        require(count <= MAX_TENSORS, "args", format_args!("at most {MAX_TENSORS} tensors"), count)?;
        let mut tensors = [flat_tensor(Role::default(), None); MAX_TENSORS];
        for (flat, (role, tensor)) in tensors.iter_mut().zip(args.tensors()) {
            *flat = flat_tensor(*role, Some(tensor));
        }
        Ok(Self {
            tensors,
            count: count as u32,
            kv_cache: args.kv_cache.as_ref().map(flat_kv_cache),
            index_cache: args.index_cache.as_ref().map(flat_index_cache),
        })
    }

    /// The struct that the table function takes; it points into `self`.
    pub(crate) fn run(&self, stream: Stream, workspace: Span) -> MsaRun {
        MsaRun {
            struct_size: size_of::<MsaRun>() as u32,
            tensor_count: self.count,
            tensors: self.tensors.as_ptr(),
            kv_cache: self.kv_cache.as_ref().map_or(std::ptr::null(), |cache| &raw const *cache),
            index_cache: self.index_cache.as_ref().map_or(std::ptr::null(), |cache| &raw const *cache),
            stream: stream.0,
            workspace: MsaSpan { address: workspace.address, bytes: workspace.bytes },
        }
    }
}

/// The arguments behind `run`. Nothing that they point to is read, and nothing is allocated: enqueueing comes here.
///
/// # Safety
/// The arrays and structs of `run` are valid.
pub(crate) unsafe fn read_run(run: &MsaRun) -> Result<Args> {
    let count = u64::from(run.tensor_count);
    // SAFETY: by this function's contract.
    let tensors = unsafe { borrow_array(run.tensors, count, MAX_TENSORS as u64, "run.tensors") }?;
    let mut args = Args::new();
    for flat in tensors {
        let (role, tensor) = whole_tensor(flat)?;
        require(args.tensor(role).is_none(), role.name(), "one tensor", "two")?;
        args.set(role, tensor);
    }
    if !run.kv_cache.is_null() {
        // SAFETY: by this function's contract.
        args.kv_cache = Some(whole_kv_cache(&unsafe { read_growing(run.kv_cache) }?)?);
    }
    if !run.index_cache.is_null() {
        // SAFETY: by this function's contract.
        args.index_cache = Some(whole_index_cache(&unsafe { read_growing(run.index_cache) }?)?);
    }
    Ok(args)
}

fn flat_tensor(role: Role, tensor: Option<&Tensor>) -> MsaTensor {
    let mut flat = MsaTensor {
        role: role.number(),
        dtype: tensor.map_or(0, |tensor| tensor.dtype.number()),
        rank: tensor.map_or(0, |tensor| tensor.shape().len() as u32),
        reserved: 0,
        address: tensor.map_or(0, |tensor| tensor.address),
        shape: [0; MAX_RANK],
        strides: [0; MAX_RANK],
    };
    if let Some(tensor) = tensor {
        flat.shape.iter_mut().zip(tensor.shape()).for_each(|(to, from)| *to = *from);
        flat.strides.iter_mut().zip(tensor.strides()).for_each(|(to, from)| *to = *from);
    }
    flat
}

fn whole_tensor(flat: &MsaTensor) -> Result<(Role, Tensor)> {
    let role = Role::from_number(flat.role)?;
    let dtype = DType::from_number(flat.dtype)?;
    let rank = flat.rank as usize;
    let axes = flat.shape.get(..rank).zip(flat.strides.get(..rank));
    let (shape, strides) =
        axes.ok_or_else(|| Error::invalid(format!("{role}.rank"), format!("at most {MAX_RANK}"), flat.rank))?;
    Ok((role, Tensor::strided(flat.address, dtype, shape, strides)?))
}

fn flat_view(view: View) -> MsaView {
    MsaView {
        address: view.address,
        page_stride: view.page_stride,
        head_stride: view.head_stride,
        token_stride: view.token_stride,
    }
}

fn whole_view(flat: MsaView) -> View {
    View {
        address: flat.address,
        page_stride: flat.page_stride,
        head_stride: flat.head_stride,
        token_stride: flat.token_stride,
    }
}

const NO_VIEW: MsaView = MsaView { address: 0, page_stride: 0, head_stride: 0, token_stride: 0 };

fn flat_kv_cache(cache: &KvCache) -> MsaKvCache {
    let bit = |present: bool, bit: u32| if present { bit } else { 0 };
    MsaKvCache {
        struct_size: size_of::<MsaKvCache>() as u32,
        format: cache.format.number(),
        present: bit(cache.key_scale.is_some(), PRESENT_KEY_SCALE)
            | bit(cache.value_scale.is_some(), PRESENT_VALUE_SCALE)
            | bit(cache.null_page.is_some(), PRESENT_NULL_PAGE),
        v_scale_order: cache.v_scale_order.number(),
        pages: cache.pages,
        null_page: cache.null_page.unwrap_or(0),
        key: flat_view(cache.key),
        value: flat_view(cache.value),
        key_scale: cache.key_scale.map_or(NO_VIEW, flat_view),
        value_scale: cache.value_scale.map_or(NO_VIEW, flat_view),
        ..zeroed()
    }
}

fn whole_kv_cache(flat: &MsaKvCache) -> Result<KvCache> {
    let has = present(flat.present, PRESENT_KEY_SCALE | PRESENT_VALUE_SCALE | PRESENT_NULL_PAGE, "kv_cache")?;
    Ok(KvCache {
        format: CacheFormat::from_number(flat.format)?,
        pages: flat.pages,
        key: whole_view(flat.key),
        value: whole_view(flat.value),
        key_scale: has(PRESENT_KEY_SCALE).then(|| whole_view(flat.key_scale)),
        value_scale: has(PRESENT_VALUE_SCALE).then(|| whole_view(flat.value_scale)),
        v_scale_order: VScaleOrder::from_number(flat.v_scale_order)?,
        null_page: has(PRESENT_NULL_PAGE).then_some(flat.null_page),
    })
}

fn flat_index_cache(cache: &IndexCache) -> MsaIndexCache {
    let bit = |present: bool, bit: u32| if present { bit } else { 0 };
    MsaIndexCache {
        struct_size: size_of::<MsaIndexCache>() as u32,
        format: cache.format.number(),
        present: bit(cache.key_scale.is_some(), PRESENT_KEY_SCALE)
            | bit(cache.null_page.is_some(), PRESENT_NULL_PAGE),
        null_page: cache.null_page.unwrap_or(0),
        pages: cache.pages,
        key: flat_view(cache.key),
        key_scale: cache.key_scale.map_or(NO_VIEW, flat_view),
    }
}

fn whole_index_cache(flat: &MsaIndexCache) -> Result<IndexCache> {
    let has = present(flat.present, PRESENT_KEY_SCALE | PRESENT_NULL_PAGE, "index_cache")?;
    Ok(IndexCache {
        format: CacheFormat::from_number(flat.format)?,
        pages: flat.pages,
        key: whole_view(flat.key),
        key_scale: has(PRESENT_KEY_SCALE).then(|| whole_view(flat.key_scale)),
        null_page: has(PRESENT_NULL_PAGE).then_some(flat.null_page),
    })
}

/// A test for the bits of `bits`, none of which may be outside `known`.
fn present(bits: u32, known: u32, cache: &str) -> Result<impl Fn(u32) -> bool> {
    require_at(
        bits & !known == 0,
        format_args!("{cache}.present"),
        format_args!("bits of {known:#x}"),
        format_args!("{bits:#x}"),
    )?;
    Ok(move |bit| bits & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{contiguous, planar};
    use crate::geometry::Geometry;

    fn sample() -> Args {
        let g = Geometry::M3;
        let mut kv = planar(&g, CacheFormat::Nvfp4, 4, 1 << 20).unwrap();
        kv.null_page = Some(0);
        kv.v_scale_order = VScaleOrder::Linear;
        let index = IndexCache::planar(&g, CacheFormat::E4m3, 4, 1 << 30).unwrap();
        Args::new()
            .with(Role::Query, Tensor::strided(64, DType::Bf16, &[3, 64, 128], &[32768, 256, 2]).unwrap())
            .with(Role::KeyScale, Tensor::contiguous(8, DType::F32, &[]).unwrap())
            .with(Role::CandidateKeys, Tensor::contiguous(1 << 40, DType::U64, &[2, 3, 4, 16]).unwrap())
            .with_kv_cache(kv)
            .with_index_cache(index)
    }

    fn same(a: &Args, b: &Args) -> bool {
        a.tensors() == b.tensors() && a.kv_cache == b.kv_cache && a.index_cache == b.index_cache
    }

    #[test]
    fn arguments_come_back() {
        let plain =
            Args::new().with_kv_cache(contiguous(&Geometry::M3, CacheFormat::Bf16, 2, 0, 1 << 24).unwrap());
        for args in [Args::new(), sample(), plain] {
            let flat = Flat::of(&args).unwrap();
            let run = flat.run(Stream(7), Span { address: 256, bytes: 512 });
            assert_eq!((run.stream, run.workspace.address, run.workspace.bytes), (7, 256, 512));
            // SAFETY: `flat` lives in this frame.
            assert!(same(&unsafe { read_run(&run) }.unwrap(), &args));
        }
    }

    #[test]
    fn j05_a_cache_has_one_of_the_named_formats_and_nothing_is_inferred() {
        let args = sample();
        let formats: Vec<u32> = CacheFormat::VALUES.iter().map(|format| format.number()).collect();
        for number in (0..64).chain([u32::MAX]) {
            let mut flat = Flat::of(&args).unwrap();
            flat.kv_cache.as_mut().unwrap().format = number;
            // SAFETY: `flat` lives in this frame.
            let read = unsafe { read_run(&flat.run(Stream(0), Span::default())) };
            match read {
                Ok(read) => assert_eq!(read.kv_cache.unwrap().format.number(), number),
                Err(error) => {
                    assert!(!formats.contains(&number));
                    assert!(error.to_string().starts_with("cache.format: want a number"), "{error}");
                }
            }
        }
        // Raw bytes have no type of their own that could be taken for a cache.
        assert!(DType::VALUES.iter().all(|dtype| !["u8", "i8", "bytes"].contains(&dtype.name())));
    }

    #[test]
    fn hostile_arguments_are_errors() {
        let args = sample();
        let refused = |change: &dyn Fn(&mut Flat)| {
            let mut flat = Flat::of(&args).unwrap();
            change(&mut flat);
            // SAFETY: `flat` lives in this frame.
            unsafe { read_run(&flat.run(Stream(0), Span::default())) }.unwrap_err().to_string()
        };
        assert!(refused(&|f| f.tensors[0].role = 0).starts_with("tensor.role"));
        assert!(refused(&|f| f.tensors[0].role = 28).starts_with("key_scale: want one tensor"));
        assert!(refused(&|f| f.tensors[0].dtype = 99).starts_with("tensor.dtype"));
        assert!(refused(&|f| f.tensors[0].rank = 5).starts_with("query.rank"));
        assert!(refused(&|f| f.tensors[0].shape[0] = u64::MAX).starts_with("tensor"));
        assert!(refused(&|f| f.count = 65).starts_with("run.tensors"));
        assert!(refused(&|f| f.kv_cache.as_mut().unwrap().format = 0).starts_with("cache.format"));
        assert!(refused(&|f| f.kv_cache.as_mut().unwrap().present = 8).starts_with("kv_cache.present"));
        assert!(
            refused(&|f| f.kv_cache.as_mut().unwrap().v_scale_order = 2)
                .starts_with("kv_cache.v_scale_order")
        );
        assert!(refused(&|f| f.index_cache.as_mut().unwrap().present = 2).starts_with("index_cache.present"));
        assert!(refused(&|f| f.index_cache.as_mut().unwrap().struct_size = 12).starts_with("MsaIndexCache"));
    }
}
