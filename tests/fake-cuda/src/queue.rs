//! Streams: what is queued, in what order it runs, what a capture records.
//!
//! A task runs when somebody waits for its stream, or for a task that comes after it. The default stream of a context and its
//! blocking streams wait for each other as in the driver's legacy mode; a non-blocking stream waits for nobody.

use std::collections::{BTreeMap, VecDeque};

use crate::code::{Code, INVALID_HANDLE, STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED};
use crate::execute;
use crate::launch::Launch;
use crate::state::State;

/// Work of a stream.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    Launch(Launch),
    /// A kernel that has handed over to other devices, and waits for them.
    Await(Launch),
    /// To device memory, from bytes that the host passed.
    Upload {
        to: u64,
        bytes: Vec<u8>,
    },
    /// Within device memory.
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    /// Nothing: where an event was recorded, or waits for one.
    Mark,
}

struct Entry {
    number: u64,
    task: Task,
    /// Streams with the number up to which they must have run.
    after: Vec<(usize, u64)>,
}

struct Queue {
    context: usize,
    blocking: bool,
    entries: VecDeque<Entry>,
    /// Number of the last task that was queued.
    last: u64,
    capture: Option<Capture>,
}

struct Capture {
    tasks: Vec<Task>,
    invalid: bool,
    /// `CUstreamCaptureMode`.
    mode: u32,
    thread: std::thread::ThreadId,
}

/// `CU_STREAM_CAPTURE_MODE_GLOBAL` and `_THREAD_LOCAL`.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;

/// All streams by handle (a context's default stream has the context's), events, graphs.
#[derive(Default)]
pub(crate) struct Queues {
    queues: BTreeMap<usize, Queue>,
    /// Stream and number of the record, 0 before the first.
    events: BTreeMap<usize, (usize, u64)>,
    graphs: BTreeMap<usize, Vec<Task>>,
    counter: u64,
}

impl Queues {
    pub(crate) fn add(&mut self, stream: usize, context: usize, blocking: bool) {
        let queue = Queue { context, blocking, entries: VecDeque::new(), last: 0, capture: None };
        self.queues.insert(stream, queue);
    }

    pub(crate) fn remove(&mut self, stream: usize) {
        self.queues.remove(&stream);
    }

    pub(crate) fn clear_context(&mut self, context: usize) {
        for queue in self.queues.values_mut().filter(|queue| queue.context == context) {
            queue.entries.clear();
        }
    }

    /// Tasks that have not run.
    pub(crate) fn pending(&self) -> usize {
        self.queues.values().map(|queue| queue.entries.len()).sum()
    }

    pub(crate) fn add_event(&mut self, event: usize) {
        self.events.insert(event, (0, 0));
    }

    pub(crate) fn event(&self, event: usize) -> Result<(usize, u64), Code> {
        self.events.get(&event).copied().ok_or(INVALID_HANDLE)
    }

    pub(crate) fn remove_event(&mut self, event: usize) -> Result<(), Code> {
        self.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn add_graph(&mut self, graph: usize, tasks: Vec<Task>) {
        self.graphs.insert(graph, tasks);
    }

    pub(crate) fn graph(&self, graph: usize) -> Result<&[Task], Code> {
        self.graphs.get(&graph).map(Vec::as_slice).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn remove_graph(&mut self, graph: usize) -> Result<(), Code> {
        self.graphs.remove(&graph).map(drop).ok_or(INVALID_HANDLE)
    }

    fn queue(&mut self, stream: usize) -> Result<&mut Queue, Code> {
        self.queues.get_mut(&stream).ok_or(INVALID_HANDLE)
    }

    /// What a new task of `stream` waits for besides the tasks before it.
    fn implied(&self, stream: usize) -> Vec<(usize, u64)> {
        let Some(own) = self.queues.get(&stream) else { return Vec::new() };
        let waits = |key: usize, other: &Queue| {
            let default = key == own.context || stream == own.context;
            key != stream && other.context == own.context && default && own.blocking && other.blocking
        };
        let others = self.queues.iter().filter(|(key, queue)| waits(**key, queue));
        others.map(|(key, queue)| (*key, queue.last)).collect()
    }

    fn push(&mut self, stream: usize, task: Task, mut after: Vec<(usize, u64)>) -> Result<u64, Code> {
        after.extend(self.implied(stream));
        self.counter += 1;
        let number = self.counter;
        let queue = self.queue(stream)?;
        queue.entries.push_back(Entry { number, task, after });
        queue.last = number;
        Ok(number)
    }

    fn put_back(&mut self, stream: usize, entry: Entry) {
        if let Some(queue) = self.queues.get_mut(&stream) {
            queue.entries.push_front(entry);
        }
    }

    fn is_due(&self, stream: usize, upto: u64) -> bool {
        let head = self.queues.get(&stream).and_then(|queue| queue.entries.front());
        head.is_some_and(|entry| entry.number <= upto)
    }

    fn pop(&mut self, stream: usize, upto: u64) -> Option<Entry> {
        if self.is_due(stream, upto) { self.queues.get_mut(&stream)?.entries.pop_front() } else { None }
    }
}

impl State {
    /// The stream that a handle names in the current context, whose stream it must be.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<usize, Code> {
        let current = self.current()?;
        // CU_STREAM_LEGACY is 1.
        let stream = if handle <= 1 { current } else { handle };
        if self.queues.queue(stream)?.context == current { Ok(stream) } else { Err(INVALID_HANDLE) }
    }

    /// Queues a task, or records it if the stream is captured.
    pub(crate) fn enqueue(&mut self, stream: usize, task: Task) -> Result<(), Code> {
        let queue = self.queues.queue(stream)?;
        if let Some(capture) = &mut queue.capture {
            capture.tasks.push(task);
            return Ok(());
        }
        self.queues.push(stream, task, Vec::new()).map(drop)
    }

    /// A call that a capture forbids, made by this thread: it fails and spoils the captures.
    pub(crate) fn refuse_in_capture(&mut self) -> Result<(), Code> {
        let thread = std::thread::current().id();
        let forbids = |c: &Capture| c.mode == GLOBAL || (c.mode == THREAD_LOCAL && c.thread == thread);
        let captures = self.queues.queues.values_mut().filter_map(|queue| queue.capture.as_mut());
        let mut refused = false;
        for capture in captures.filter(|capture| forbids(capture)) {
            capture.invalid = true;
            refused = true;
        }
        if refused { Err(STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// The same for one stream, by any thread.
    pub(crate) fn refuse_if_captured(&mut self, stream: usize) -> Result<(), Code> {
        match &mut self.queues.queue(stream)?.capture {
            Some(capture) => {
                capture.invalid = true;
                Err(STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Runs what `stream` has queued up to `upto`, and what that waits for.
    pub(crate) fn run(&mut self, stream: usize, upto: u64) -> Result<(), Code> {
        self.advance(stream, upto).map(drop)
    }

    /// The same; false if it stopped at a kernel that waits, further out, for other devices.
    fn advance(&mut self, stream: usize, upto: u64) -> Result<bool, Code> {
        if self.waiting.contains(&stream) {
            return Ok(!self.queues.is_due(stream, upto));
        }
        while let Some(entry) = self.queues.pop(stream, upto) {
            for &(other, number) in &entry.after {
                if !self.advance(other, number)? {
                    self.queues.put_back(stream, entry);
                    return Ok(false);
                }
            }
            let context = self.queues.queue(stream)?.context;
            let number = entry.number;
            match self.perform(stream, context, entry.task) {
                Ok(None) => {}
                Ok(Some(task)) => {
                    self.queues.put_back(stream, Entry { number, task, after: Vec::new() });
                    self.waiting.push(stream);
                    let waits = self.settle(stream);
                    self.waiting.pop();
                    if waits? {
                        return Ok(false);
                    }
                }
                Err(code) => {
                    self.fail_context(context, code);
                    return Err(code);
                }
            }
        }
        Ok(true)
    }

    /// Lets the other streams run as far as they get for the kernel at the head of this one, which waits for them. True if it must
    /// go on waiting, for a stream that is being run further out; where there is none it ends without what did not come.
    fn settle(&mut self, stream: usize) -> Result<bool, Code> {
        let others: Vec<usize> =
            self.queues.queues.keys().copied().filter(|&other| other != stream).collect();
        for is_late in [false, true] {
            if self.arrived(stream)? {
                break;
            }
            if is_late && self.waiting.len() > 1 {
                return Ok(true);
            }
            for &other in &others {
                // By now others have waited too long as well, but for what they wait for then. An error is that of the other
                // one's context, which keeps it.
                if is_late {
                    let _ = self.conclude(other);
                }
                let _ = self.advance(other, u64::MAX);
            }
        }
        self.conclude(stream).map(|()| false)
    }

    /// Ends the kernel at the head of a stream if it is one that waits.
    fn conclude(&mut self, stream: usize) -> Result<(), Code> {
        let queue = self.queues.queue(stream)?;
        let context = queue.context;
        let waits = matches!(queue.entries.front(), Some(Entry { task: Task::Await(_), .. }));
        let Some(Entry { task: Task::Await(launch), .. }) = queue.entries.pop_front_if(|_| waits) else {
            return Ok(());
        };
        let device = self.device_of(context)?;
        let mut place = execute::Place { device, context, memory: &mut self.memory, peers: &self.peers };
        let finished = execute::finish(&launch, &mut place).map_err(|fault| told(&launch, fault));
        finished.inspect_err(|&code| self.fail_context(context, code))
    }

    fn arrived(&mut self, stream: usize) -> Result<bool, Code> {
        let queue = self.queues.queue(stream)?;
        let (context, head) = (queue.context, queue.entries.front().map(|entry| entry.task.clone()));
        let Some(Task::Await(launch)) = head else { return Ok(true) };
        let device = self.device_of(context)?;
        let mut place = execute::Place { device, context, memory: &mut self.memory, peers: &self.peers };
        execute::has_arrived(&launch, &mut place).map_err(|fault| told(&launch, fault))
    }

    /// Runs everything of a context.
    pub(crate) fn run_context(&mut self, context: usize) -> Result<(), Code> {
        let of_context = |(key, queue): (&usize, &Queue)| (queue.context == context).then_some(*key);
        let streams: Vec<usize> = self.queues.queues.iter().filter_map(of_context).collect();
        streams.into_iter().try_for_each(|stream| self.run(stream, u64::MAX))?;
        self.usable(context)
    }

    /// Runs what a synchronous copy waits for: the default stream and the blocking ones.
    pub(crate) fn run_default(&mut self, context: usize) -> Result<(), Code> {
        self.queues.push(context, Task::Mark, Vec::new())?;
        self.run(context, u64::MAX)?;
        self.usable(context)
    }

    /// Work that is left: a wait for other devices.
    fn perform(&mut self, stream: usize, context: usize, task: Task) -> Result<Option<Task>, Code> {
        let device = self.device_of(context)?;
        match task {
            Task::Mark => Ok(None),
            Task::Await(_) => Ok(Some(task)),
            Task::Upload { to, bytes } => {
                self.memory.bytes_mut(device, to, bytes.len())?.copy_from_slice(&bytes);
                Ok(None)
            }
            Task::Copy { to, from, bytes } => {
                let source = self.memory.bytes(device, from, bytes)?.to_vec();
                self.memory.bytes_mut(device, to, bytes)?.copy_from_slice(&source);
                Ok(None)
            }
            Task::Launch(launch) => {
                self.report(format!("run stream={stream:#x} {launch}"));
                if let Some((_, code)) =
                    self.broken.take_if(|(symbol, _)| launch.symbol.starts_with(&**symbol))
                {
                    return Err(code);
                }
                let mut place =
                    execute::Place { device, context, memory: &mut self.memory, peers: &self.peers };
                let waits = execute::run(&launch, &mut place).map_err(|fault| told(&launch, fault))?;
                Ok(waits.then_some(Task::Await(launch)))
            }
        }
    }
}

/// Prints what went wrong; the driver knows only its code.
fn told(launch: &Launch, fault: execute::Fault) -> Code {
    eprintln!("fake CUDA: {}: {}", launch.symbol, fault.text);
    fault.code
}

/// Events and graphs.
impl State {
    pub(crate) fn record(&mut self, event: usize, stream: usize) -> Result<(), Code> {
        self.queues.event(event)?;
        self.refuse_if_captured(stream)?;
        let number = self.queues.push(stream, Task::Mark, Vec::new())?;
        self.queues.events.insert(event, (stream, number));
        Ok(())
    }

    pub(crate) fn wait_for_event(&mut self, stream: usize, event: usize) -> Result<(), Code> {
        let (other, number) = self.queues.event(event)?;
        self.refuse_if_captured(stream)?;
        let after = if number == 0 { Vec::new() } else { vec![(other, number)] };
        self.queues.push(stream, Task::Mark, after).map(drop)
    }

    pub(crate) fn begin_capture(&mut self, stream: usize, mode: u32) -> Result<(), Code> {
        let is_default = self.top() == Some(stream);
        let queue = self.queues.queue(stream)?;
        if is_default || queue.capture.is_some() {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let thread = std::thread::current().id();
        queue.capture = Some(Capture { tasks: Vec::new(), invalid: false, mode, thread });
        Ok(())
    }

    pub(crate) fn end_capture(&mut self, stream: usize) -> Result<usize, Code> {
        let capture = self.queues.queue(stream)?.capture.take().ok_or(INVALID_HANDLE)?;
        if capture.invalid {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        let graph = self.new_handle();
        self.queues.add_graph(graph, capture.tasks);
        Ok(graph)
    }

    pub(crate) fn launch_graph(&mut self, graph: usize, stream: usize) -> Result<(), Code> {
        let tasks = self.queues.graph(graph)?.to_vec();
        tasks.into_iter().try_for_each(|task| self.enqueue(stream, task))
    }
}
