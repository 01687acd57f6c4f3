//! What ranks push to each other.

use super::{Address, Bytes, Parameters};

/// `exchange.*`: grid `[world]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exchange {
    /// This rank's bytes.
    pub own: Address,
    /// `[world]` addresses of each rank's buffer `[2][world][units]`.
    pub buffers: Address,
    /// `[world]` addresses of each rank's flags `[world]` u32.
    pub flags: Address,
    /// u32, counted up before the launch.
    pub epoch: Address,
    /// u32 status word.
    pub status: Address,
    /// 16-byte units.
    pub units: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks.
    pub world: u32,
    /// Polls before a rank counts as missing.
    pub spins: u32,
}

impl Parameters for Exchange {
    fn write(&self, bytes: &mut Bytes) {
        bytes.wide(&[self.own, self.buffers, self.flags, self.epoch, self.status, self.units]);
        bytes.words(&[self.rank, self.world, self.spins, 0]);
    }
}
