//! The primitive crossings: structs that may have another size on the other side, and text.

use super::table::{
    MsaBuffer, MsaDeviceInfo, MsaDiag, MsaHostInfo, MsaIndexCache, MsaKvCache, MsaOp, MsaPlan,
    MsaPlanRequest, MsaPluginApi, MsaRun, MsaSpan, MsaSupport, MsaText, MsaVariant,
};
use crate::error::{Error, Result, require, require_at};

/// Largest struct size that is believed, bytes: the table is a few hundred.
const MAX_STRUCT: u32 = 64 << 10;

/// Longest text that is taken, bytes: a plan of 2^16 requests is some megabytes.
pub(crate) const MAX_TEXT: u64 = 256 << 20;

/// A struct whose first field is `struct_size` and which newer minor versions may lengthen.
///
/// # Safety
/// `#[repr(C)]`, starts with `struct_size: u32`, and all-zero bytes are a valid value.
pub(crate) unsafe trait Growing: Copy {
    /// Name for errors.
    const NAME: &'static str;
    /// Bytes in version 1.0: what every side has.
    const FIRST_SIZE: u32;
}

macro_rules! growing {
    ($($type:ident = $size:literal),* $(,)?) => {$(
        // SAFETY: declared by `c_structs!` from integers, pointers, optional functions and arrays of these, with
        // `struct_size` first, which the layout tests assert.
        unsafe impl Growing for $type {
            const NAME: &'static str = stringify!($type);
            const FIRST_SIZE: u32 = $size;
        }
    )*};
}
growing! {
    MsaDiag = 40, MsaHostInfo = 48, MsaDeviceInfo = 128, MsaVariant = 48, MsaOp = 24, MsaSupport = 32,
    MsaPlanRequest = 64, MsaPlan = 56, MsaKvCache = 160, MsaIndexCache = 88, MsaRun = 56, MsaPluginApi = 224,
}

/// The struct at `pointer` as this side knows it: fields beyond its `struct_size` are zero, fields beyond ours are
/// not looked at. Null, or a size that no version has, is an error.
///
/// # Safety
/// `pointer` is null or points to four readable bytes, and to as many as they say.
pub(crate) unsafe fn read_growing<T: Growing>(pointer: *const T) -> Result<T> {
    require(!pointer.is_null(), T::NAME, "a struct", "null")?;
    require(pointer.is_aligned(), T::NAME, "an aligned address", format_args!("{pointer:p}"))?;
    // SAFETY: readable by this function's contract; a growing struct starts with its size.
    let size = unsafe { pointer.cast::<u32>().read() };
    let believable = (T::FIRST_SIZE..=MAX_STRUCT).contains(&size) && size.is_multiple_of(8);
    let want = format_args!("a multiple of 8 from {} to {MAX_STRUCT}", T::FIRST_SIZE);
    require_at(believable, format_args!("{}.struct_size", T::NAME), want, size)?;
    let mut value = zeroed::<T>();
    let bytes = (size as usize).min(size_of::<T>());
    // SAFETY: `bytes` are readable by this function's contract and fit into `value`, which is another object.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast::<u8>(), bytes) };
    Ok(value)
}

/// Writes `value` back to a struct that [`read_growing`] accepted, up to the size that it has there.
///
/// # Safety
/// `pointer` is valid for writes of its `struct_size`.
pub(crate) unsafe fn write_growing<T: Growing>(pointer: *mut T, value: &T) {
    // SAFETY: readable by this function's contract.
    let size = unsafe { pointer.cast::<u32>().read() };
    let bytes = (size as usize).min(size_of::<T>());
    // SAFETY: valid for `bytes` by this function's contract; `value` is another object of this side.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), pointer.cast::<u8>(), bytes) };
    // SAFETY: as above; the caller's size stays what the caller wrote.
    unsafe { pointer.cast::<u32>().write(size) };
}

/// A value of all zeroes.
pub(crate) fn zeroed<T: Growing>() -> T {
    // SAFETY: all-zero bytes are a valid value of every growing struct.
    unsafe { std::mem::zeroed() }
}

/// Text that was passed in, copied.
///
/// # Safety
/// `text` is valid for reads of its length.
pub(crate) unsafe fn read_text(text: MsaText, field: &str) -> Result<String> {
    // SAFETY: by this function's contract; the borrow ends in this function.
    unsafe { borrow_text(text, field) }.map(str::to_owned)
}

/// Text that was passed in, for as long as its owner promised.
///
/// # Safety
/// `text` is valid for reads of its length for all of `'a`.
pub(crate) unsafe fn borrow_text<'a>(text: MsaText, field: &str) -> Result<&'a str> {
    if text.length == 0 {
        return Ok("");
    }
    require(!text.text.is_null(), field, "text", "null")?;
    require(text.length <= MAX_TEXT, field, format_args!("at most {MAX_TEXT} bytes"), text.length)?;
    // SAFETY: not null, and valid for reads by this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(text.text, text.length as usize) };
    std::str::from_utf8(bytes).map_err(|error| Error::invalid(field, "UTF-8", error))
}

/// Fills the caller's buffer, or says how much room it needs.
///
/// # Safety
/// `buffer` is valid for writes of its capacity.
pub(crate) unsafe fn fill_buffer(buffer: &mut MsaBuffer, text: &str) {
    buffer.length = text.len() as u64;
    if buffer.text.is_null() || buffer.length > buffer.capacity {
        return;
    }
    // SAFETY: not null and at least `text.len()` bytes by this function's contract.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.text, text.len()) };
}

/// `count` structs at `pointer`, copied.
///
/// # Safety
/// As for [`borrow_array`], until it returns.
pub(crate) unsafe fn read_array<T: Copy>(
    pointer: *const T,
    count: u64,
    most: u64,
    field: &str,
) -> Result<Vec<T>> {
    // SAFETY: by this function's contract; the borrow ends in this function.
    unsafe { borrow_array(pointer, count, most, field) }.map(<[T]>::to_vec)
}

/// `count` structs at `pointer`, where they are.
///
/// # Safety
/// `pointer` is valid for reads of `count` structs, if `count` is not above `most`, for all of `'a`.
pub(crate) unsafe fn borrow_array<'a, T: Copy>(
    pointer: *const T,
    count: u64,
    most: u64,
    field: &str,
) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    require(count <= most, field, format_args!("at most {most}"), count)?;
    require(!pointer.is_null() && pointer.is_aligned(), field, "an array", format_args!("{pointer:p}"))?;
    // SAFETY: not null, aligned and readable by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count as usize) })
}

/// Writes a result.
///
/// # Safety
/// `out` is null or valid for a write.
pub(crate) unsafe fn write_out<T>(out: *mut T, value: T, field: &str) -> Result<()> {
    require(!out.is_null() && out.is_aligned(), field, "memory of the caller", format_args!("{out:p}"))?;
    // SAFETY: not null, aligned, and valid by this function's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// A span that was passed by pointer.
///
/// # Safety
/// `span` is null or readable.
pub(crate) unsafe fn read_span(span: *const MsaSpan) -> Result<crate::backend::Span> {
    // SAFETY: one struct by this function's contract.
    let spans = unsafe { borrow_array(span, 1, 1, "workspace") }?;
    let span = spans.first().ok_or_else(|| Error::invalid("workspace", "a span", "none"))?;
    Ok(crate::backend::Span { address: span.address, bytes: span.bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation as the next minor version could have it.
    #[repr(C)]
    struct Longer {
        known: MsaOp,
        appended: u64,
    }

    fn op(size: u32) -> MsaOp {
        MsaOp { struct_size: size, revision: 7, text: MsaText::of("op.kind = merge") }
    }

    #[test]
    fn a_longer_struct_is_read_as_far_as_it_is_known() {
        let longer = Longer { known: op(32), appended: 9 };
        // SAFETY: the struct is as long as it says.
        let read = unsafe { read_growing((&raw const longer).cast::<MsaOp>()) }.unwrap();
        assert_eq!((read.revision, read.text.length, longer.appended), (7, 15, 9));
    }

    /// A struct that version 1.0 had without its second half.
    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Grown {
        struct_size: u32,
        first: u32,
        appended: u64,
    }

    // SAFETY: integers alone, `struct_size` first.
    unsafe impl Growing for Grown {
        const NAME: &'static str = "Grown";
        const FIRST_SIZE: u32 = 8;
    }

    #[test]
    fn an_older_struct_is_zero_where_it_ends_and_written_no_further() {
        let mut memory = [Grown { struct_size: 8, first: 5, appended: 77 }, zeroed()];
        // SAFETY: eight bytes are there, and more.
        let read = unsafe { read_growing(&raw const memory[0]) }.unwrap();
        assert_eq!(read, Grown { struct_size: 8, first: 5, appended: 0 });
        // SAFETY: as above.
        unsafe { write_growing(&raw mut memory[0], &Grown { struct_size: 16, first: 6, appended: 1 }) };
        assert_eq!(memory, [Grown { struct_size: 8, first: 6, appended: 77 }, zeroed()]);
    }

    #[test]
    fn a_shorter_device_info_keeps_its_end_and_its_size() {
        let mut info = zeroed::<MsaDiag>();
        info.struct_size = 40;
        let mut written = info;
        written.length = 3;
        written.struct_size = 4096;
        // SAFETY: `info` is as long as it says.
        unsafe { write_growing(&raw mut info, &written) };
        assert_eq!((info.struct_size, info.length), (40, 3));
    }

    #[test]
    fn sizes_that_no_version_has_are_errors() {
        for size in [0, 1, 16, 23, 25, 65 << 10, u32::MAX] {
            let op = op(size);
            // SAFETY: sizes outside the believable range are refused before anything is read.
            let error = unsafe { read_growing(&raw const op) }.unwrap_err().to_string();
            assert!(error.starts_with("MsaOp.struct_size: want a multiple of 8 from 24"), "{error}");
        }
        // SAFETY: null is refused.
        assert!(unsafe { read_growing(std::ptr::null::<MsaOp>()) }.is_err());
    }

    #[test]
    fn hostile_text_is_an_error() {
        let bad = [0xff_u8, 0xfe];
        // SAFETY: the lengths that are not refused are true.
        let read = |text: *const u8, length| unsafe { read_text(MsaText { text, length }, "t") };
        assert!(read(bad.as_ptr(), 2).is_err());
        assert!(read(std::ptr::null(), 2).is_err());
        assert!(read(bad.as_ptr(), u64::MAX).is_err());
        assert_eq!(read(std::ptr::null(), 0).unwrap(), "");
    }

    #[test]
    fn a_buffer_that_is_too_small_stays_as_it_was() {
        let mut bytes = [b'x'; 4];
        let mut buffer = MsaBuffer::of(&mut bytes);
        // SAFETY: the buffer is as long as it says.
        unsafe { fill_buffer(&mut buffer, "abcde") };
        assert_eq!((buffer.length, bytes), (5, [b'x'; 4]));
        let mut buffer = MsaBuffer::of(&mut bytes);
        // SAFETY: as above.
        unsafe { fill_buffer(&mut buffer, "abc") };
        assert_eq!((buffer.length, bytes), (3, *b"abcx"));
    }
}
