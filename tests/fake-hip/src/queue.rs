//! Streams: what is queued, in what order it runs, what a capture records.
//!
//! Nothing runs before somebody waits for it, so that whoever does not wait long enough sees what was there before. The default
//! stream of a device and the blocking ones wait for each other: their work runs in the order in which it was queued. A
//! non-blocking stream waits for nobody and nobody waits for it. Other devices go on with everything that they have.

use std::collections::BTreeMap;

use msa_emu::gfx9::Launch;

use crate::Code;
use crate::state::{CAPTURING, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, LAUNCH_FAILURE, State};

/// Work of a device.
#[derive(Clone)]
pub(crate) enum Task {
    Launch(Launch),
    SetWords {
        address: u64,
        value: u32,
        count: usize,
    },
    /// Bytes that the host handed over: a copy of pageable memory returns before they are on the device.
    Write {
        address: u64,
        bytes: Vec<u8>,
    },
}

/// Where a task goes: (device, stream).
pub(crate) type Place = (usize, usize);

/// What somebody waits for, on one device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// A stream; 0 is the default one.
    Stream(usize),
    /// All streams.
    Device,
}

struct Stream {
    device: usize,
    blocking: bool,
}

/// Streams, events, captures and graphs.
#[derive(Default)]
pub(crate) struct Queues {
    /// Work by stream, each with its number.
    queued: BTreeMap<Place, Vec<(u64, Task)>>,
    streams: BTreeMap<usize, Stream>,
    /// Where each event was recorded last.
    events: BTreeMap<usize, Option<Place>>,
    /// Streams that capture, with what they have captured.
    captures: BTreeMap<usize, Vec<(usize, Task)>>,
    graphs: Vec<Vec<(usize, Task)>>,
    handles: usize,
    numbers: u64,
}

impl Queues {
    /// True if the stream is captured.
    pub(crate) fn captures(&self, stream: usize) -> bool {
        self.captures.contains_key(&stream)
    }

    /// Tasks that have not run.
    pub(crate) fn pending(&self) -> usize {
        self.queued.values().map(Vec::len).sum()
    }

    fn handle(&mut self) -> usize {
        self.handles += 1;
        self.handles + 1
    }

    fn blocks(&self, stream: usize) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.blocking)
    }

    /// Takes what is due on a device: the default stream with the blocking ones as they were queued, then the others.
    fn take(&mut self, device: usize, until: Until) -> Vec<Task> {
        let due = |stream: usize| match until {
            Until::Device => true,
            Until::Stream(own) => stream == own || (self.blocks(own) && self.blocks(stream)),
        };
        let places: Vec<Place> =
            self.queued.keys().filter(|(d, s)| *d == device && due(*s)).copied().collect();
        let (mut ordered, mut others) = (Vec::new(), Vec::new());
        for place in places {
            let tasks = self.queued.remove(&place).unwrap_or_default();
            if self.blocks(place.1) { ordered.extend(tasks) } else { others.extend(tasks) }
        }
        ordered.sort_by_key(|(number, _)| *number);
        ordered.into_iter().chain(others).map(|(_, task)| task).collect()
    }
}

impl State {
    /// The default stream is every device's; one that was created belongs to the device that was current.
    pub(crate) fn check_stream(&self, device: usize, stream: usize) -> Result<(), Code> {
        let fits = self.queues.streams.get(&stream).is_none_or(|own| own.device == device);
        if fits { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    /// A call that no capture allows.
    pub(crate) fn refuse_in_capture(&self) -> Result<(), Code> {
        if self.queues.captures.is_empty() { Ok(()) } else { Err(CAPTURING) }
    }

    pub(crate) fn enqueue(&mut self, device: usize, stream: usize, task: Task) -> Result<(), Code> {
        if self.fault.is_some() {
            return Err(LAUNCH_FAILURE);
        }
        let queues = &mut self.queues;
        match queues.captures.get_mut(&stream) {
            Some(captured) => captured.push((device, task)),
            None => {
                queues.numbers += 1;
                queues.queued.entry((device, stream)).or_default().push((queues.numbers, task));
            }
        }
        Ok(())
    }

    /// Runs what somebody waits for.
    pub(crate) fn wait(&mut self, function: &'static str, device: usize, until: Until) -> Result<(), Code> {
        let stream = if let Until::Stream(stream) = until { stream } else { 0 };
        self.note(function, "", [0; 3], (device, stream));
        if self.fault.is_some() {
            return Err(LAUNCH_FAILURE);
        }
        self.refuse_in_capture()?;
        self.check_stream(device, stream)?;
        let of = |other: usize| if other == device { until } else { Until::Device };
        let due = (0..self.devices()).map(|other| self.queues.take(other, of(other))).collect();
        self.run(due)
    }

    /// Runs the work of each device, devices interleaved. Memory is set when its device comes to it, which is a point where
    /// all devices wait.
    fn run(&mut self, of_device: Vec<Vec<Task>>) -> Result<(), Code> {
        let mut queues: Vec<_> = of_device.into_iter().map(|tasks| tasks.into_iter().peekable()).collect();
        loop {
            let mut streams = vec![Vec::new(); queues.len()];
            let mut idle = true;
            for (queue, stream) in queues.iter_mut().zip(&mut streams) {
                while let Some(task) = queue.next_if(|task| !matches!(task, Task::Launch(_))) {
                    self.set(task)?;
                    idle = false;
                }
                while let Some(Task::Launch(launch)) = queue.next_if(|task| matches!(task, Task::Launch(_))) {
                    *self.executed.entry(launch.kernel.code().name.clone()).or_default() += 1;
                    stream.push(launch);
                    idle = false;
                }
            }
            if idle {
                return Ok(());
            }
            if let Err(error) = self.machine.run_streams(&streams) {
                eprintln!("fake HIP: {error}");
                self.fault = Some(error.to_string());
                return Err(LAUNCH_FAILURE);
            }
        }
    }

    fn set(&mut self, task: Task) -> Result<(), Code> {
        match task {
            Task::Write { address, bytes } => self.write(address, &bytes),
            Task::SetWords { address, value, count } => {
                let bytes: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), count).flatten().collect();
                self.write(address, &bytes)
            }
            Task::Launch(_) => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn create_stream(&mut self, device: usize, blocking: bool) -> usize {
        let handle = self.queues.handle();
        self.queues.streams.insert(handle, Stream { device, blocking });
        handle
    }

    pub(crate) fn create_event(&mut self) -> usize {
        let handle = self.queues.handle();
        self.queues.events.insert(handle, None);
        handle
    }

    pub(crate) fn record(&mut self, event: usize, place: Place) -> Result<(), Code> {
        self.check_stream(place.0, place.1)?;
        *self.queues.events.get_mut(&event).ok_or(INVALID_HANDLE)? = Some(place);
        Ok(())
    }

    /// An event that was not recorded has nothing to wait for.
    pub(crate) fn wait_for_event(&mut self, event: usize) -> Result<(), Code> {
        match *self.queues.events.get(&event).ok_or(INVALID_HANDLE)? {
            Some((device, stream)) => self.wait("hipEventSynchronize", device, Until::Stream(stream)),
            None => Ok(()),
        }
    }

    pub(crate) fn destroy_event(&mut self, event: usize) -> Result<(), Code> {
        self.queues.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn begin_capture(&mut self, stream: usize) -> Result<(), Code> {
        if stream == 0 || self.queues.captures(stream) {
            return Err(INVALID_VALUE);
        }
        self.queues.captures.insert(stream, Vec::new());
        Ok(())
    }

    pub(crate) fn end_capture(&mut self, stream: usize) -> Result<usize, Code> {
        let captured = self.queues.captures.remove(&stream).ok_or(INVALID_VALUE)?;
        self.queues.graphs.push(captured);
        Ok(self.queues.graphs.len())
    }

    pub(crate) fn launch_graph(&mut self, graph: usize, stream: usize) -> Result<(), Code> {
        let found = graph.checked_sub(1).and_then(|index| self.queues.graphs.get(index));
        let tasks = found.ok_or(INVALID_VALUE)?.clone();
        tasks.into_iter().try_for_each(|(device, task)| match self.queues.streams.get(&stream) {
            Some(own) if own.device != device => Err(INVALID_DEVICE),
            _ => self.enqueue(device, stream, task),
        })
    }
}
