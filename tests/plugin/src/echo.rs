//! A backend whose attention returns the query: small, exact, and quick enough for thousands of calls.

use std::fmt;
use std::sync::Arc;

use msa_core::abi::host::{HostAllocator, HostKernel, HostMemory, HostPrepared};
use msa_core::args::{Args, Extents, Role};
use msa_core::backend::{Backend, Device, Memory, Prepared, Span, Status};
use msa_core::device::{Arch, DeviceInfo, DeviceTraits};
use msa_core::error::{Error, Result};
use msa_core::op::{Op, OpKind};
use msa_core::plan::Plan;
use msa_core::variant::{Need, Variant};

const VARIANTS: &[Variant] = &[
    Variant {
        name: "sparse_decode.q16kv16.cpu.narrow",
        op: OpKind::SparseDecode,
        arch: Arch::Cpu,
        arithmetic: "f32",
        max_query_len: Some(4),
        needs: &[
            Need { what: "k = 16", holds: |op| op.geometry().top_k == 16 },
            Need { what: "head_dim = 128", holds: |op| op.geometry().head_dim == 128 },
        ],
    },
    Variant {
        name: "sparse_decode.q16kv16.cpu.echo",
        op: OpKind::SparseDecode,
        arch: Arch::Cpu,
        arithmetic: "f32",
        max_query_len: None,
        needs: &[Need { what: "k below 64", holds: |op| op.geometry().top_k < 64 }],
    },
];

/// A backend whose attention returns the query.
pub fn backend() -> Arc<dyn Backend> {
    Arc::new(Echo)
}

struct Echo;

impl Backend for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(vec![info()])
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        if ordinal != 0 {
            return Err(Error::invalid("device", "0", ordinal));
        }
        Ok(Arc::new(EchoDevice { info: info(), allocator: HostAllocator::default() }))
    }
}

fn info() -> DeviceInfo {
    let traits = DeviceTraits { l2: 7, launch_ns: 8, hop_ns: 9, ..DeviceTraits::cpu(3) };
    DeviceInfo {
        ordinal: 0,
        name: "Echo über alles".to_owned(),
        arch: "any".to_owned(),
        driver: String::new(),
        memory: 1 << 33,
        traits,
    }
}

struct EchoDevice {
    info: DeviceInfo,
    allocator: HostAllocator,
}

impl fmt::Debug for EchoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("echo:0")
    }
}

impl Device for EchoDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn name(&self) -> String {
        "echo:0".to_owned()
    }

    fn variants(&self) -> &[Variant] {
        VARIANTS
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(HostPrepared::new(Kernel { plan: plan.clone() })?))
    }

    fn memory(&self) -> &dyn Memory {
        &self.allocator
    }
}

struct Kernel {
    plan: Plan,
}

impl HostKernel for Kernel {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn run(
        &self,
        memory: &mut HostMemory<'_>,
        args: &Args,
        extents: Extents,
        _workspace: Span,
    ) -> Result<Status> {
        let Op::SparseDecode(op) = &self.plan.op else {
            return Err(Error::Plan("echo does sparse_decode only".to_owned()));
        };
        let tensor =
            |role: Role| args.tensor(role).ok_or(Error::Missing { op: "sparse_decode", role: role.name() });
        let (query, output) = (tensor(Role::Query)?, tensor(Role::Output)?);
        for row in 0..extents.rows {
            for head in 0..u64::from(op.geometry.query_heads) {
                let bytes = memory.row(query, &[row, head])?.to_vec();
                memory.row_mut(output, &[row, head])?.copy_from_slice(&bytes);
            }
        }
        Ok(Status::default())
    }
}
