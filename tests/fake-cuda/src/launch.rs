//! A launch: what the driver checks before it takes one.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUclusterSchedulingPolicy as Policy, CUlaunchAttributeID as Id, CUlaunchConfig};

use crate::code::{Code, INVALID_VALUE};
use crate::image::Image;
use crate::state::Function;

/// Dynamic and static shared memory of a block, at most, on every device here: 227 KiB.
pub(crate) const MAX_SHARED: u32 = 227 << 10;

/// Blocks of a cluster, at most: portable, and by permission.
const CLUSTER: [u32; 2] = [8, 16];

/// A kernel with everything that it was launched with.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) image: Arc<Image>,
    pub(crate) symbol: String,
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) cluster: u32,
    pub(crate) shared: u32,
    /// May start before the kernel in front of it has ended.
    pub(crate) overlaps: bool,
    /// How blocks of a cluster are to be placed.
    pub(crate) policy: Policy,
    /// The parameters, each at its offset.
    pub(crate) parameters: Vec<u8>,
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { image, symbol, grid: [x, y, z], threads, cluster, shared, overlaps, policy, .. } = self;
        let (name, arch, bytes) = (&image.name, &image.arch, self.parameters.len());
        write!(
            f,
            "kernel={symbol} image={name} arch={arch} grid={x}x{y}x{z} threads={threads} cluster={cluster} \
             shared={shared} parameters={bytes} overlaps={overlaps} policy={policy:?}"
        )
    }
}

impl Launch {
    /// Checks a configuration against the function, and copies the parameters.
    ///
    /// # Safety
    /// The configuration and the parameters are as `cuLaunchKernelEx` takes them.
    pub(crate) unsafe fn new(
        function: &Function,
        config: &CUlaunchConfig,
        parameters: *mut *mut std::ffi::c_void,
    ) -> Result<Self, Code> {
        let kernel = &function.kernel;
        // SAFETY: the caller's promise.
        let (cluster, overlaps, policy) = unsafe { attributes(config) }?;
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let threads = config.blockDimX.saturating_mul(config.blockDimY).saturating_mul(config.blockDimZ);
        let most = [i32::MAX as u32, 65_535, 65_535];
        let fits = grid.iter().zip(most).all(|(&blocks, most)| (1..=most).contains(&blocks))
            && (1..=kernel.threads.min(1024)).contains(&threads)
            && config.sharedMemBytes <= function.shared
            && config.sharedMemBytes + kernel.shared <= MAX_SHARED
            && (1..=CLUSTER[usize::from(function.large_cluster)]).contains(&cluster)
            && grid[0].is_multiple_of(cluster);
        if !fits || parameters.is_null() {
            return Err(INVALID_VALUE);
        }
        let end = kernel.parameters.iter().map(|(offset, bytes)| offset + bytes).max().unwrap_or(0);
        let mut block = vec![0; end];
        // SAFETY: the caller passes one pointer a parameter.
        let pointers = unsafe { std::slice::from_raw_parts(parameters, kernel.parameters.len()) };
        for (pointer, &(offset, bytes)) in pointers.iter().zip(&kernel.parameters) {
            let from = pointer.cast::<u8>();
            if from.is_null() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: it points to the parameter, which has this size.
            block[offset..offset + bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
        }
        Ok(Self {
            image: function.image.clone(),
            symbol: function.symbol.clone(),
            grid,
            threads,
            cluster,
            shared: config.sharedMemBytes,
            overlaps,
            policy,
            parameters: block,
        })
    }
}

/// Blocks of a cluster, whether the launch may overlap the one before it, and the policy by which blocks of a cluster are placed.
///
/// # Safety
/// The list of attributes is as long as the configuration says.
unsafe fn attributes(config: &CUlaunchConfig) -> Result<(u32, bool, Policy), Code> {
    let (mut cluster, mut overlaps, mut policy) = (1, false, Policy::CU_CLUSTER_SCHEDULING_POLICY_DEFAULT);
    if config.numAttrs == 0 {
        return Ok((cluster, overlaps, policy));
    }
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts(config.attrs, config.numAttrs as usize) };
    for attribute in list {
        match attribute.id {
            Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                // SAFETY: the member that the id names.
                let size = unsafe { attribute.value.clusterDim };
                if (size.y, size.z) != (1, 1) {
                    return Err(INVALID_VALUE);
                }
                cluster = size.x;
            }
            Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => {
                // SAFETY: the member that the id names.
                overlaps = unsafe { attribute.value.programmaticStreamSerializationAllowed } != 0;
            }
            Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                // SAFETY: the member that the id names.
                policy = unsafe { attribute.value.clusterSchedulingPolicyPreference };
            }
            _ => return Err(INVALID_VALUE),
        }
    }
    Ok((cluster, overlaps, policy))
}
