//! One declaration for a struct of the border: the Rust type, its layout and its text in the C header.

/// A field of a struct of the border.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    /// Name, the same in C.
    pub(crate) name: &'static str,
    /// Rust type as written.
    pub(crate) rust_type: &'static str,
    /// Bytes from the start of the struct.
    pub(crate) offset: usize,
    /// Bytes.
    pub(crate) size: usize,
    /// Documentation, one entry a line.
    pub(crate) docs: &'static [&'static str],
}

/// A struct of the border.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// Name, the same in C.
    pub(crate) name: &'static str,
    /// Bytes.
    pub(crate) size: usize,
    /// Documentation, one entry a line.
    pub(crate) docs: &'static [&'static str],
    /// Fields in order.
    pub(crate) fields: &'static [Field],
}

/// A function type of the border.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    /// Name of the C typedef.
    pub(crate) name: &'static str,
    /// Documentation, one entry a line.
    pub(crate) docs: &'static [&'static str],
    /// Name and Rust type of every parameter.
    pub(crate) parameters: &'static [(&'static str, &'static str)],
    /// Rust type of the result, empty for none.
    pub(crate) result: &'static str,
}

/// Declares `#[repr(C)]` structs whose all-zero value is valid, with their descriptions.
macro_rules! c_structs {
    ($( $(#[doc = $docs:literal])* $name:ident { $( $(#[doc = $field_docs:literal])* $field:ident: $type:ty, )* } )*) => {
        $(
            $(#[doc = $docs])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            pub struct $name { $( $(#[doc = $field_docs])* pub $field: $type, )* }

            impl $name {
                const RECORD: $crate::abi::describe::Record = $crate::abi::describe::Record {
                    name: stringify!($name),
                    size: size_of::<$name>(),
                    docs: &[$($docs),*],
                    fields: &[$( $crate::abi::describe::Field {
                        name: stringify!($field),
                        rust_type: stringify!($type),
                        offset: std::mem::offset_of!($name, $field),
                        size: size_of::<$type>(),
                        docs: &[$($field_docs),*],
                    } ),*],
                };
            }
        )*

        /// Every struct, in order of declaration.
        pub(crate) const RECORDS: &[$crate::abi::describe::Record] =
            &[$( $name::RECORD ),*];
    };
}

/// Declares function pointer types with their descriptions.
macro_rules! c_functions {
    ($( $(#[doc = $docs:literal])* fn $name:ident($($parameter:ident: $type:ty),* $(,)?) $(-> $result:ty)?; )*) => {
        $(
            $(#[doc = $docs])*
            pub type $name = unsafe extern "C" fn($($parameter: $type),*) $(-> $result)?;
        )*

        /// Every function type, in order of declaration.
        pub(crate) const FUNCTIONS: &[$crate::abi::describe::Function] = &[$( $crate::abi::describe::Function {
            name: stringify!($name),
            docs: &[$($docs),*],
            parameters: &[$((stringify!($parameter), stringify!($type))),*],
            result: concat!($(stringify!($result))?),
        } ),*];
    };
}

pub(super) use {c_functions, c_structs};
