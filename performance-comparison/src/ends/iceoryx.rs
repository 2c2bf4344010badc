//! iceoryx2: publish–subscribe (loan, write, send; receive, read, release) and its events.

use helix_shm::ring::spsc::Words;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use super::End;
use crate::shared::{CAPACITY, Side};

/// What goes wrong while a service is made.
pub type Failed = Box<dyn std::error::Error>;

/// The node of this process, whose services carry the run's name.
pub struct Iceoryx {
    node: Node<ipc::Service>,
    run: String,
    side: Side,
}

/// A publisher and a subscriber.
pub struct Samples {
    to: Publisher<ipc::Service, Words, ()>,
    from: Subscriber<ipc::Service, Words, ()>,
}

/// A notifier and a listener.
pub struct Events {
    to: Notifier<ipc::Service>,
    from: Listener<ipc::Service>,
}

impl Iceoryx {
    /// For one of the two processes of `run`.
    pub fn new(run: &str, side: Side) -> Result<Iceoryx, Failed> {
        set_log_level(LogLevel::Error);
        // Its files under names of our own, so that what it leaves can be told apart and removed.
        let mut config = Config::default();
        config.global.prefix = FileName::new(format!("{run}-").as_bytes())?;
        config.global.set_root_path(&Path::new(std::env::temp_dir().join(run).as_os_str().as_encoded_bytes())?);
        let builder = NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled);
        let node = builder.config(&config).create::<ipc::Service>()?;
        Ok(Iceoryx { node, run: run.to_owned(), side })
    }

    /// Removes what the run's nodes left behind, which are gone.
    pub fn remove_leftovers(run: &str) -> std::io::Result<()> {
        for entry in std::fs::read_dir("/dev/shm")? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(run.as_bytes()) {
                std::fs::remove_file(entry.path())?;
            }
        }
        let root = std::env::temp_dir().join(run);
        if root.exists() { std::fs::remove_dir_all(root) } else { Ok(()) }
    }

    /// Names of the services that we send on and listen to.
    fn names(&self, what: &str) -> Result<[ServiceName; 2], Failed> {
        let (to, from) = if self.side == Side::A { ("there", "back") } else { ("back", "there") };
        let name = |way| ServiceName::new(&format!("{}/{what}/{way}", self.run));
        Ok([name(to)?, name(from)?])
    }

    /// A publisher and a subscriber, with a buffer as deep as everybody's and no overwriting.
    pub fn samples(&self) -> Result<Samples, Failed> {
        let [to, from] = self.names("samples")?;
        let service = |name| {
            self.node
                .service_builder(name)
                .publish_subscribe::<Words>()
                .subscriber_max_buffer_size(CAPACITY as usize)
                .enable_safe_overflow(false)
                .history_size(0)
                .max_publishers(1)
                .max_subscribers(1)
                .open_or_create()
        };
        // A full buffer is found by polling, as with everybody.
        let to =
            service(&to)?.publisher_builder().backpressure_strategy(BackpressureStrategy::DiscardData).create()?;
        Ok(Samples { to, from: service(&from)?.subscriber_builder().create()? })
    }

    /// A notifier and a listener.
    pub fn events(&self) -> Result<Events, Failed> {
        let [to, from] = self.names("events")?;
        let service = |name| self.node.service_builder(name).event().open_or_create();
        Ok(Events {
            to: service(&to)?.notifier_builder().create()?,
            from: service(&from)?.listener_builder().create()?,
        })
    }
}

impl End for Samples {
    #[inline(always)]
    fn send(&mut self, message: &Words) -> bool {
        let sample = self.to.loan_uninit().expect("a sample to loan");
        sample.write_payload(*message).send().expect("a connection") == 1
    }

    #[inline(always)]
    fn recv(&mut self) -> Option<Words> {
        self.from.receive().expect("a connection").map(|sample| *sample)
    }
}

impl Events {
    /// Wakes the other.
    pub fn notify(&mut self) {
        self.to.notify().expect("a connection");
    }

    /// Sleeps until woken.
    pub fn wait(&mut self) {
        while self.from.blocking_wait(|_| ()).expect("a listener") == 0 {}
    }
}
