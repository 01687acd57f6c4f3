//! Simulated GPUs: memory, launches, and an interleaving that a seed decides.

use std::sync::Arc;

use super::super::code_object::CodeObject;
use super::super::disassemble::Disassembler;
use super::super::error::{EmuError, Fault};
use super::LANES;
use super::lds::Lds;
use super::memory::{BufferId, Memory};
use super::program::{Action, Program};
use super::wave::{Progress, Surroundings, Wave};
use crate::gfx9::code_object::KernelCode;

/// A kernel, ready to launch.
#[derive(Clone)]
pub struct Kernel {
    program: Arc<Program>,
}

impl Kernel {
    /// Decodes the kernel `name`.
    ///
    /// # Errors
    /// It is not there, needs what this interpreter does not offer (scratch, other launch registers), or holds an
    /// instruction that is not implemented.
    pub fn load(object: &CodeObject, name: &str) -> Result<Self, EmuError> {
        let code = object.kernel(name)?;
        check_launch_registers(code)?;
        let disassembler = Disassembler::new(object.architecture())?;
        let program = Program::new(code, object.architecture(), &disassembler)?;
        Ok(Self { program: Arc::new(program) })
    }

    /// Its descriptor.
    pub fn code(&self) -> &KernelCode {
        &self.program.code
    }

    /// Instructions that no launch of this kernel (or a clone) has executed, as (offset from the entry, listing).
    pub fn not_executed(&self) -> Vec<(u64, String)> {
        self.program.not_executed()
    }

    /// Number of instructions.
    pub fn instructions(&self) -> usize {
        self.program.steps.len()
    }
}

fn check_launch_registers(code: &KernelCode) -> Result<(), EmuError> {
    let refuse = |reason: String| Err(EmuError::Launch { kernel: code.name.clone(), reason });
    // The flag of the wave size is no register, and all kernels here have 64 lanes.
    let others = code.properties & !KernelCode::ARGUMENT_POINTER;
    if others != 0 || code.user_registers != 2 {
        return refuse(format!("launch registers {others:#x} are not implemented"));
    }
    if code.scratch_bytes != 0 {
        return refuse(format!("{} bytes of scratch: registers were spilled", code.scratch_bytes));
    }
    Ok(())
}

/// The arguments of a kernel: values one after the other, each at a multiple of its size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments(Vec<u8>);

impl Arguments {
    /// No arguments yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a u64 or an address.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.append(&value.to_le_bytes())
    }

    /// Appends a u32.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.append(&value.to_le_bytes())
    }

    /// Appends an f32.
    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.append(&value.to_le_bytes())
    }

    /// Appends the bytes of a structure as they are.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn append(mut self, bytes: &[u8]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0);
        self.0.extend_from_slice(bytes);
        self
    }
}

/// One launch.
#[derive(Clone)]
pub struct Launch {
    /// Kernel.
    pub kernel: Kernel,
    /// Groups in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a group.
    pub threads: u32,
    /// Arguments.
    pub arguments: Arguments,
}

/// How to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Decides which wave runs next, and for how long.
    pub seed: u64,
    /// Groups of a GPU that are under way at a time.
    pub resident_groups: usize,
    /// Most instructions that a wave executes before another one is chosen.
    pub longest_burst: u32,
    /// Wave-instructions after which a run counts as endless.
    pub most_steps: u64,
    /// A GPU and the number of a launch in its stream, in which only the first wave of each group runs as often as others:
    /// what the others owe the other GPUs comes late.
    pub laggard: Option<(usize, usize)>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, resident_groups: 2, longest_burst: 200, most_steps: 1 << 28, laggard: None }
    }
}

/// Of this many picks of a lagging launch one lets all its waves run.
const LAG: u64 = 509;

/// What a run did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Wave-instructions.
    pub instructions: u64,
    /// Matrix instructions among them.
    pub matrix_instructions: u64,
    /// `v_perm_b32` among them: what dequantises and transposes.
    pub byte_permutes: u64,
}

/// Simulated GPUs that share an address space.
pub struct Machine {
    memory: Memory,
    gpus: usize,
    options: Options,
    random: u64,
    favourite: u64,
}

impl Machine {
    /// `gpus` GPUs.
    pub fn new(gpus: usize, options: Options) -> Self {
        let random = options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { memory: Memory::new(gpus), gpus: gpus.max(1), options, random, favourite: 0 }
    }

    /// Registers memory that kernels may read and write.
    pub fn buffer(&mut self, bytes: &[u8]) -> BufferId {
        self.memory.add(bytes.to_vec(), true)
    }

    /// Registers memory that kernels may read and write, all zero. It costs address space until it is touched.
    pub fn zeroed(&mut self, bytes: usize) -> BufferId {
        self.memory.add(vec![0; bytes], true)
    }

    /// Registers memory that kernels may only read.
    pub fn constant(&mut self, bytes: &[u8]) -> BufferId {
        self.memory.add(bytes.to_vec(), false)
    }

    /// Unmaps a buffer; its addresses are not used again.
    pub fn remove(&mut self, buffer: BufferId) {
        self.memory.remove(buffer);
    }

    /// Registers pieces of one array that lie `stride` bytes apart, with nothing mapped between them: so a small test has
    /// offsets that need more than 32 bits. The first piece gives the address of the array.
    pub fn pieces(&mut self, pieces: &[&[u8]], stride: u64, writable: bool) -> Vec<BufferId> {
        let base = self.memory.next_address();
        let place = |(index, bytes): (u64, &&[u8])| {
            self.memory.skip_to(base + index * stride);
            self.memory.add(bytes.to_vec(), writable)
        };
        (0..).zip(pieces).map(place).collect()
    }

    /// Device address of a buffer.
    pub fn address(&self, buffer: BufferId) -> u64 {
        self.memory.address(buffer)
    }

    /// Content of a buffer, as the host sees it after the last run.
    pub fn bytes(&self, buffer: BufferId) -> &[u8] {
        self.memory.bytes(buffer)
    }

    /// Bytes that kernels have loaded from a buffer so far, every lane counted.
    pub fn loaded_bytes(&self, buffer: BufferId) -> u64 {
        self.memory.loaded_bytes(buffer)
    }

    /// Content of a buffer for the host to change between runs.
    pub fn bytes_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        self.memory.host_bytes(buffer)
    }

    /// Copies out of device memory at an address, as the host sees it after the last run.
    ///
    /// # Errors
    /// The range is in no buffer.
    pub fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.memory.host_range(address, bytes.len()).map(|own| bytes.copy_from_slice(own))
    }

    /// Copies into device memory at an address, between runs.
    ///
    /// # Errors
    /// The range is in no buffer.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.memory.host_range(address, bytes.len()).map(|own| own.copy_from_slice(bytes))
    }

    /// Runs one launch on GPU 0.
    ///
    /// # Errors
    /// What a kernel did wrong, see [`EmuError`].
    pub fn run(&mut self, launch: &Launch) -> Result<Statistics, EmuError> {
        self.run_streams(&[vec![launch.clone()]])
    }

    /// Runs a stream of launches on every GPU: in order within a stream, interleaved between them.
    ///
    /// # Errors
    /// What a kernel did wrong, see [`EmuError`]; more streams than GPUs.
    pub fn run_streams(&mut self, streams: &[Vec<Launch>]) -> Result<Statistics, EmuError> {
        if streams.len() > self.gpus {
            let reason = format!("{} streams on {} GPUs", streams.len(), self.gpus);
            return Err(EmuError::Launch { kernel: "stream".to_owned(), reason });
        }
        let mut states: Vec<Stream<'_>> =
            streams.iter().enumerate().map(|(gpu, launches)| Stream::new(gpu, launches)).collect();
        let mut statistics = Statistics::default();
        loop {
            for stream in &mut states {
                stream.fill(&mut self.memory, self.options.resident_groups)?;
            }
            let live: Vec<usize> = (0..states.len()).filter(|&s| !states[s].groups.is_empty()).collect();
            if live.is_empty() {
                return Ok(statistics);
            }
            let (pick, burst_pick) = (self.pick(), self.random());
            let stream = &mut states[live[pick as usize % live.len()]];
            let burst = 1 + (burst_pick % u64::from(self.options.longest_burst.max(1))) as u32;
            let lags = self.options.laggard == Some((stream.gpu, stream.launch)) && burst_pick % LAG != 0;
            let yielded = stream.advance(&mut self.memory, pick >> 8, burst, lags, &mut statistics)?;
            if yielded {
                self.favourite = self.random();
            }
            if statistics.instructions > self.options.most_steps {
                return Err(EmuError::Endless { steps: self.options.most_steps });
            }
        }
    }

    /// What runs next. Mostly what ran before, for a while: GPUs and waves that lag far behind find more faults than fair
    /// ones. The seed says how long a while is.
    fn pick(&mut self) -> u64 {
        let fresh = self.random();
        let (change, stray) = if self.options.seed % 3 == 2 { (511, 31) } else { (31, 3) };
        if fresh & change == 0 {
            self.favourite = self.random();
        }
        if fresh >> 9 & stray == 0 { fresh >> 14 } else { self.favourite }
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 16
    }
}

/// The launches of one GPU and where they stand.
struct Stream<'a> {
    gpu: usize,
    launches: &'a [Launch],
    /// Launch under way, and its next group.
    launch: usize,
    next_group: u64,
    arguments: Option<BufferId>,
    groups: Vec<Group>,
}

struct Group {
    id: [u32; 3],
    waves: Vec<Wave>,
    lds: Lds,
}

impl<'a> Stream<'a> {
    fn new(gpu: usize, launches: &'a [Launch]) -> Self {
        Self { gpu, launches, launch: 0, next_group: 0, arguments: None, groups: Vec::new() }
    }

    /// Starts groups, and the next launch when the last has ended.
    fn fill(&mut self, memory: &mut Memory, resident: usize) -> Result<(), EmuError> {
        while let Some(launch) = self.launches.get(self.launch) {
            let total = launch.grid.iter().map(|&extent| u64::from(extent)).product::<u64>();
            if self.next_group == 0 && total > 0 && self.groups.is_empty() {
                memory.invalidate(self.gpu);
                self.arguments = Some(place_arguments(launch, memory)?);
            }
            while let (Some(arguments), true) =
                (self.arguments, self.next_group < total && self.groups.len() < resident.max(1))
            {
                self.groups.push(start_group(launch, self.next_group, memory.address(arguments))?);
                self.next_group += 1;
            }
            if !self.groups.is_empty() {
                return Ok(());
            }
            // The end of a kernel releases what it stored.
            memory.write_back(self.gpu, memory.now());
            if let Some(arguments) = self.arguments.take() {
                memory.remove(arguments);
            }
            self.launch += 1;
            self.next_group = 0;
        }
        Ok(())
    }

    /// Runs one wave of one group for at most `burst` instructions. True if it gave way, or could not run.
    fn advance(
        &mut self,
        memory: &mut Memory,
        pick: u64,
        burst: u32,
        lags: bool,
        statistics: &mut Statistics,
    ) -> Result<bool, EmuError> {
        let program = &self.launches[self.launch].kernel.program;
        let index = pick as usize % self.groups.len();
        let group = &mut self.groups[index];
        let runs = if lags { 1 } else { group.waves.len() };
        let ready: Vec<usize> =
            (0..runs.min(group.waves.len())).filter(|&wave| group.is_ready(wave)).collect();
        let wave = ready.get((pick >> 8) as usize % ready.len().max(1)).copied();
        if let Some(wave) = wave {
            group.run_wave(program, memory, self.gpu, wave, burst, statistics)?;
        }
        let yielded = wave.is_none_or(|wave| group.waves[wave].progress == Progress::Yields);
        if group.waves.iter().all(|wave| wave.progress == Progress::Ended) {
            self.groups.swap_remove(index);
        } else {
            group.release_barrier();
        }
        Ok(yielded)
    }
}

impl Group {
    fn is_ready(&self, wave: usize) -> bool {
        matches!(self.waves[wave].progress, Progress::Running | Progress::Yields)
    }

    fn run_wave(
        &mut self,
        program: &Program,
        memory: &mut Memory,
        gpu: usize,
        wave: usize,
        burst: u32,
        statistics: &mut Statistics,
    ) -> Result<(), EmuError> {
        let state = &mut self.waves[wave];
        state.progress = Progress::Running;
        for _ in 0..burst {
            let at = state.next;
            let mut around = Surroundings { memory, lds: &mut self.lds, gpu, wave };
            if let Err(fault) = state.step(program, &mut around) {
                return Err(error_at(program, at, wave, self.id, gpu, fault));
            }
            statistics.instructions += 1;
            if let Some(step) = program.steps.get(at) {
                statistics.matrix_instructions += u64::from(matches!(step.action, Action::Matrix(_)));
                statistics.byte_permutes += u64::from(step.permutes_bytes);
            }
            if state.progress != Progress::Running {
                break;
            }
        }
        Ok(())
    }

    /// When every wave that has not ended waits at the barrier, all go on.
    fn release_barrier(&mut self) {
        let waiting = |wave: &Wave| matches!(wave.progress, Progress::AtBarrier | Progress::Ended);
        if !self.waves.iter().all(waiting) {
            return;
        }
        for wave in self.waves.iter_mut().filter(|wave| wave.progress == Progress::AtBarrier) {
            wave.progress = Progress::Running;
        }
        self.lds.next_phase();
    }
}

fn start_group(launch: &Launch, number: u64, arguments: u64) -> Result<Group, EmuError> {
    let program = &launch.kernel.program;
    let [x, y, _] = launch.grid.map(u64::from);
    let id = [number % x, number / x % y, number / x / y].map(|id| id as u32);
    let count = (launch.threads as usize).div_ceil(LANES);
    let mut waves = Vec::with_capacity(count);
    for wave in 0..count {
        let lanes = launch.threads - (wave * LANES) as u32;
        let started = Wave::new(program, id, wave, lanes, arguments);
        waves.push(started.map_err(|fault| error_at(program, 0, wave, id, 0, fault))?);
    }
    Ok(Group { id, waves, lds: Lds::new(program.code.lds_bytes) })
}

fn place_arguments(launch: &Launch, memory: &mut Memory) -> Result<BufferId, EmuError> {
    let (bytes, want) = (&launch.arguments.0, launch.kernel.code().argument_bytes as usize);
    if bytes.len().next_multiple_of(8) != want.next_multiple_of(8) {
        let reason = format!("{want} bytes of arguments wanted, {} given", bytes.len());
        return Err(EmuError::Launch { kernel: launch.kernel.code().name.clone(), reason });
    }
    // Scalar loads fetch whole words of eight or sixteen, also past the end of the arguments.
    let mut padded = bytes.clone();
    padded.resize(want.next_multiple_of(64) + 64, 0);
    Ok(memory.add(padded, false))
}

fn error_at(
    program: &Program,
    at: usize,
    wave: usize,
    group: [u32; 3],
    gpu: usize,
    fault: Fault,
) -> EmuError {
    let step = program.steps.get(at);
    EmuError::Fault {
        kernel: program.code.name.clone(),
        address: step.map_or(0, |step| step.address),
        text: step.map_or_else(String::new, |step| step.text.clone()),
        wave,
        group,
        gpu,
        fault,
    }
}
