//! The record layer as a state machine: encrypted bytes in and out, without I/O.

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, Error};

use crate::tls::buffers::{Gather, Inbox, Outbox, Plain, Target};

/// Room for a close_notify and its record.
const FAREWELL_BYTES: usize = 64;

/// Either end of a connection.
pub(super) enum Machine {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What to do once what was received is processed, if the handshake is through.
pub(super) enum Wish<'a, 'b> {
    Nothing,
    Encrypt(&'a mut Gather<'b>),
    Close,
}

/// How the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// More must be received before anything can be sent.
    Handshaking,
    Open,
    /// The peer sends no more.
    Ended,
}

/// What the record layer works on.
#[derive(Default)]
pub(super) struct Buffers {
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub plain: Plain,
    scratch: Vec<u8>,
}

impl Machine {
    /// Processes all that was received, then does as wished.
    pub(super) fn drive(
        &mut self,
        buffers: &mut Buffers,
        target: &mut Target<'_, '_>,
        wish: Wish<'_, '_>,
    ) -> Result<Standing, Error> {
        match self {
            Machine::Client(connection) => drive(connection, buffers, target, wish),
            Machine::Server(connection) => drive(connection, buffers, target, wish),
        }
    }

    pub(super) fn state(&self) -> &CommonState {
        match self {
            Machine::Client(connection) => connection,
            Machine::Server(connection) => connection,
        }
    }
}

/// What both ends' connections can do, which the library has as a method of each.
trait Process {
    type Side;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Side>;
    fn has_queued(&self) -> bool;
}

macro_rules! process {
    ($connection:ty, $side:ty) => {
        impl Process for $connection {
            type Side = $side;
            fn process<'c, 'i>(
                &'c mut self,
                incoming: &'i mut [u8],
            ) -> UnbufferedStatus<'c, 'i, $side> {
                self.process_tls_records(incoming)
            }
            fn has_queued(&self) -> bool {
                self.wants_write()
            }
        }
    };
}

process!(UnbufferedClientConnection, ClientConnectionData);
process!(UnbufferedServerConnection, ServerConnectionData);

fn drive<P: Process>(
    connection: &mut P,
    buffers: &mut Buffers,
    target: &mut Target<'_, '_>,
    wish: Wish<'_, '_>,
) -> Result<Standing, Error> {
    let Buffers { inbox, outbox, plain, scratch } = buffers;
    loop {
        let UnbufferedStatus { mut discard, state } = connection.process(inbox.unread());
        let standing = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    target.put(record.payload, plain);
                }
                None
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                encode(&mut data, outbox)?;
                None
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // The outbox keeps the order, so what is in it counts as transmitted.
                data.done();
                None
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                match wish {
                    Wish::Nothing => {}
                    Wish::Encrypt(gather) => encrypt(&mut traffic, gather, scratch, outbox)?,
                    Wish::Close => close(&mut traffic, outbox)?,
                }
                inbox.discard(discard);
                return Ok(Standing::Open);
            }
            Ok(ConnectionState::BlockedHandshake) => Some(Standing::Handshaking),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Standing::Ended),
            Ok(_) => return Err(Error::General("data before the handshake".to_owned())),
            Err(error) => {
                inbox.discard(discard);
                say_why(connection, outbox);
                return Err(error);
            }
        };
        inbox.discard(discard);
        if let Some(standing) = standing {
            return Ok(standing);
        }
    }
}

/// Queues the alert that reports an error to the peer.
fn say_why<P: Process>(connection: &mut P, outbox: &mut Outbox) {
    // The library hands out what it has queued before it looks at what was received, which after
    // an error it must not do again.
    while connection.has_queued()
        && let Ok(ConnectionState::EncodeTlsData(mut data)) = connection.process(&mut []).state
        && encode(&mut data, outbox).is_ok()
    {}
}

fn encode<S>(data: &mut EncodeTlsData<'_, S>, outbox: &mut Outbox) -> Result<(), Error> {
    let mut written = data.encode(outbox.room(0));
    if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) = written {
        written = data.encode(outbox.room(required_size));
    }
    outbox.wrote(written.map_err(general)?);
    Ok(())
}

fn encrypt<S>(
    traffic: &mut WriteTraffic<'_, S>,
    gather: &mut Gather<'_>,
    scratch: &mut Vec<u8>,
    outbox: &mut Outbox,
) -> Result<(), Error> {
    while let Some(piece) = gather.next(scratch) {
        let mut written = traffic.encrypt(piece, outbox.space(piece.len()));
        // A change of keys goes first, when one is due.
        if let Err(EncryptError::InsufficientSize(size)) = written {
            written = traffic.encrypt(piece, outbox.room(size.required_size));
        }
        outbox.wrote(written.map_err(general)?);
    }
    Ok(())
}

fn close<S>(traffic: &mut WriteTraffic<'_, S>, outbox: &mut Outbox) -> Result<(), Error> {
    let written = traffic.queue_close_notify(outbox.room(FAREWELL_BYTES));
    outbox.wrote(written.map_err(general)?);
    Ok(())
}

fn general(error: impl ToString) -> Error {
    Error::General(error.to_string())
}
