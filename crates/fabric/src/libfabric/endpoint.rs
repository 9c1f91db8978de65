//! An endpoint of libfabric's with one peer: a domain, a completion queue and an address of its
//! own, so that no other peer's writes or keys are valid in it.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::zeroed;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::ptr;

use super::ffi;
use super::library::{Choice, Info, Library, Provider, Unavailable};
use crate::contract::{
    Access, Completion, Counts, FabricError, Network, PlacedWrites, Posted, RegionId, Remote,
    Segment, Write,
};
use crate::pages::Pages;

/// Completions that are read at once.
const BATCH: usize = 32;

/// How often in a row: a peer that writes without end does not keep this end from judging it.
const BATCHES: usize = 8;

/// The longest name that an endpoint may have.
const NAME_BYTES: usize = 512;

/// An endpoint; made by [`open`](LibfabricEndpoint::open).
#[derive(Debug)]
pub struct LibfabricEndpoint {
    library: &'static Library,
    // In the order in which they are closed, but see `drop`.
    endpoint: Object<ffi::fid_ep>,
    regions: Vec<Region>,
    addresses: Object<ffi::fid_av>,
    queue: Object<ffi::fid_cq>,
    domain: Object<ffi::fid_domain>,
    fabric: Object<ffi::fid_fabric>,
    info: Info,
    name: Vec<u8>,
    peer: u64,
    event_fd: Option<RawFd>,
    /// What the provider may use of each write under way, by the write's context.
    contexts: Box<[ffi::fi_context2]>,
    counts: Counts,
}

#[derive(Debug)]
struct Region {
    /// Before the memory: it is deregistered first.
    registration: Object<ffi::fid_mr>,
    pages: Pages,
}

/// An object of the library's, closed when this is dropped.
pub(super) struct Object<T>(*mut T);

impl<T> fmt::Debug for Object<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

// SAFETY: the request says that a domain is used by one thread at a time, which may be any; all
// objects of a domain move together with the endpoint.
unsafe impl<T> Send for Object<T> {}

impl<T> Object<T> {
    /// As what every object begins with.
    fn fid(&self) -> *mut ffi::fid {
        self.0.cast()
    }
}

impl<T> Object<T> {
    /// Closes it now; it must not be used any more.
    fn close(&mut self) {
        let fid = self.fid();
        if !fid.is_null() {
            // SAFETY: every object begins with a `fid`, and is open until now.
            unsafe { ((*(*fid).ops).close)(fid) };
            self.0 = ptr::null_mut();
        }
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl Drop for LibfabricEndpoint {
    fn drop(&mut self) {
        // An endpoint to which regions are bound cannot be closed before them. What is under way
        // may then fail; the pages stay until it is closed.
        if self.mode().0 & ffi::FI_MR_ENDPOINT != 0 {
            self.regions.iter_mut().for_each(|region| region.registration.close());
        }
    }
}

impl LibfabricEndpoint {
    /// An endpoint on the best network that `choice` allows, at `source` where it has addresses of
    /// IP. So many writes may be under way at once.
    ///
    /// # Errors
    /// [`Unavailable`] in words if there is none, or what the library says.
    pub fn open(
        choice: &Choice,
        source: Option<IpAddr>,
        writes: u32,
    ) -> Result<LibfabricEndpoint, FabricError> {
        let unavailable = |error: Unavailable| FabricError::new("open", error.to_string());
        let library = Library::get().map_err(unavailable)?;
        let info = library.infos(choice, source).map_err(unavailable)?.swap_remove(0);
        let raw = info.info;
        // SAFETY: the description is whole; objects are opened in the order of their manual pages,
        // each from one that is open, with attributes that live until the call returns.
        unsafe {
            let mut fabric = ptr::null_mut();
            let attr = (*raw).fabric_attr;
            library.check("fi_fabric", (library.fabric)(attr, &raw mut fabric, ptr::null_mut()))?;
            let fabric = Object(fabric);
            let mut domain = ptr::null_mut();
            let open = (*(*fabric.0).ops).domain;
            library.check("fi_domain", open(fabric.0, raw, &raw mut domain, ptr::null_mut()))?;
            let domain = Object(domain);
            let (queue, event_fd) = completion_queue(library, &domain, 4 * writes as usize)?;
            let mut attr: ffi::fi_av_attr = zeroed();
            (attr.kind, attr.count) = (ffi::FI_AV_TABLE, 1);
            let mut addresses = ptr::null_mut();
            let open = (*(*domain.0).ops).av_open;
            let code = open(domain.0, &raw mut attr, &raw mut addresses, ptr::null_mut());
            library.check("fi_av_open", code)?;
            let addresses = Object(addresses);
            let mut endpoint = ptr::null_mut();
            let open = (*(*domain.0).ops).endpoint;
            let code = open(domain.0, raw, &raw mut endpoint, ptr::null_mut());
            library.check("fi_endpoint", code)?;
            let endpoint = Object(endpoint);
            let ops = &*(*endpoint.fid()).ops;
            library.check("fi_ep_bind", (ops.bind)(endpoint.fid(), addresses.fid(), 0))?;
            let both = ffi::FI_TRANSMIT | ffi::FI_RECV;
            library.check("fi_ep_bind", (ops.bind)(endpoint.fid(), queue.fid(), both))?;
            let code = (ops.control)(endpoint.fid(), ffi::FI_ENABLE, ptr::null_mut());
            library.check("fi_enable", code)?;
            let name = name_of(library, &endpoint)?;
            Ok(LibfabricEndpoint {
                library,
                endpoint,
                regions: Vec::new(),
                addresses,
                queue,
                domain,
                fabric,
                info,
                name,
                peer: ffi::FI_ADDR_UNSPEC,
                event_fd,
                contexts: vec![ffi::fi_context2([0; 8]); writes as usize].into(),
                counts: Counts::default(),
            })
        }
    }

    /// The network that was chosen.
    #[must_use]
    pub fn provider(&self) -> Provider {
        self.info.provider()
    }

    fn mode(&self) -> (c_int, usize) {
        // SAFETY: the description is whole.
        let attr = unsafe { &*(*self.info.info).domain_attr };
        (attr.mr_mode, attr.mr_key_size)
    }

    /// The text of what a failed write left in the queue.
    fn failure(&self) -> FabricError {
        // SAFETY: the queue is open; the entry is zeros, which say that no error data is wanted.
        unsafe {
            let mut entry: ffi::fi_cq_err_entry = zeroed();
            let queue = self.queue.0;
            let read = ((*(*queue).ops).readerr)(queue, &raw mut entry, 0);
            let reason = match read {
                1 => self.library.describe(entry.err),
                code => self.library.describe(code as c_int),
            };
            FabricError::new("a placed write failed", reason)
        }
    }
}

/// Whether a name that a peer has told, and which may be anything, is one like ours: a provider
/// reads as many bytes as the kind of address has that a socket's name says.
fn check_name(format: u32, ours: &[u8], peers: &[u8]) -> Result<(), &'static str> {
    if format == ffi::FI_ADDR_STR {
        return Ok(());
    }
    if peers.len() != ours.len() {
        return Err("the peer's name has another length");
    }
    let kind = size_of::<libc::sa_family_t>().min(ours.len());
    if ffi::SOCKET_ADDRESSES.contains(&format) && peers[..kind] != ours[..kind] {
        return Err("the peer's name is an address of another kind");
    }
    Ok(())
}

/// A queue of completions, and its descriptor if it has one.
///
/// # Safety
/// The domain is open.
unsafe fn completion_queue(
    library: &'static Library,
    domain: &Object<ffi::fid_domain>,
    size: usize,
) -> Result<(Object<ffi::fid_cq>, Option<RawFd>), FabricError> {
    // SAFETY: the domain is open, and zeros are attributes.
    unsafe {
        let mut attr: ffi::fi_cq_attr = zeroed();
        (attr.size, attr.format) = (size, ffi::FI_CQ_FORMAT_DATA);
        for wait in [ffi::FI_WAIT_FD, ffi::FI_WAIT_NONE] {
            attr.wait_obj = wait;
            let mut queue = ptr::null_mut();
            let open = (*(*domain.0).ops).cq_open;
            let code = open(domain.0, &raw mut attr, &raw mut queue, ptr::null_mut());
            if code != 0 && wait == ffi::FI_WAIT_FD {
                continue;
            }
            library.check("fi_cq_open", code)?;
            let queue = Object(queue);
            if wait == ffi::FI_WAIT_NONE {
                return Ok((queue, None));
            }
            let mut fd: c_int = -1;
            let control = (*(*queue.fid()).ops).control;
            let code = control(queue.fid(), ffi::FI_GETWAIT, (&raw mut fd).cast());
            library.check("fi_control(FI_GETWAIT)", code)?;
            return Ok((queue, Some(fd)));
        }
    }
    unreachable!("the second attempt returns")
}

/// What peers need to reach an endpoint.
///
/// # Safety
/// The endpoint is open and enabled.
unsafe fn name_of(
    library: &'static Library,
    endpoint: &Object<ffi::fid_ep>,
) -> Result<Vec<u8>, FabricError> {
    let mut name = vec![0; NAME_BYTES];
    let mut bytes = name.len();
    // SAFETY: it writes no more bytes than it is told that there are.
    let code = unsafe {
        let getname = (*(*endpoint.0).cm).getname;
        getname(endpoint.fid(), name.as_mut_ptr().cast(), &raw mut bytes)
    };
    library.check("fi_getname", code)?;
    name.truncate(bytes);
    Ok(name)
}

impl Network for Choice {
    type Endpoint = LibfabricEndpoint;

    fn open(&self, source: Option<IpAddr>, writes: u32) -> Result<LibfabricEndpoint, FabricError> {
        LibfabricEndpoint::open(self, source, writes)
    }

    fn may_block(&self) -> bool {
        true
    }
}

impl PlacedWrites for LibfabricEndpoint {
    fn network(&self) -> String {
        self.provider().name
    }

    fn protocol(&self) -> String {
        self.info.protocol()
    }

    fn name(&self) -> &[u8] {
        &self.name
    }

    fn max_write(&self) -> usize {
        // SAFETY: the description is whole.
        unsafe { (*(*self.info.info).ep_attr).max_msg_size }
    }

    fn register(&mut self, bytes: usize, access: Access) -> Result<RegionId, FabricError> {
        let pages = Pages::new(bytes);
        // SAFETY: the pages stay until the registration is closed.
        let registration = unsafe { self.registration(pages.start(), pages.len(), access)? };
        self.regions.push(Region { registration, pages });
        Ok(RegionId(self.regions.len() - 1))
    }

    fn remote(&self, RegionId(region): RegionId) -> Remote {
        let Region { registration, pages } = &self.regions[region];
        // Else the address is the distance from the beginning of the region.
        let by_address = self.mode().0 & ffi::FI_MR_VIRT_ADDR != 0;
        let address = if by_address { pages.start() as u64 } else { 0 };
        // SAFETY: the registration is open.
        let key = unsafe { (*registration.0).key };
        Remote { address, key, bytes: pages.len() as u64 }
    }

    fn put(&mut self, RegionId(region): RegionId, at: usize, bytes: &[u8]) {
        self.regions[region].pages.put(at, bytes);
    }

    fn get(&self, RegionId(region): RegionId, at: usize, into: &mut [u8]) {
        self.regions[region].pages.get(at, into);
    }

    fn connect(&mut self, name: &[u8]) -> Result<(), FabricError> {
        // SAFETY: the description is whole.
        let format = unsafe { (*self.info.info).addr_format };
        check_name(format, &self.name, name)
            .map_err(|reason| FabricError::new("fi_av_insert", reason))?;
        // A string ends, and there are zeros where a provider should read on.
        let mut name = name.to_vec();
        name.resize(name.len() + NAME_BYTES, 0);
        // SAFETY: the table is open; the name is a string, or has as many bytes as ours.
        let code = unsafe {
            let insert = (*(*self.addresses.0).ops).insert;
            let (table, name) = (self.addresses.0, name.as_ptr().cast::<c_void>());
            insert(table, name, 1, &raw mut self.peer, 0, ptr::null_mut())
        };
        match code {
            1 => Ok(()),
            0 => Err(FabricError::new("fi_av_insert", "the peer's name is not an address")),
            code => Err(FabricError::new("fi_av_insert", self.library.describe(code))),
        }
    }

    fn post(&mut self, write: &Write<'_>) -> Result<Posted, FabricError> {
        self.post_by(write, None)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let empty = ffi::fi_cq_data_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
        };
        let mut entries = [empty; BATCH];
        for _ in 0..BATCHES {
            // SAFETY: the queue is open, and there is room for so many entries.
            let read = unsafe {
                let queue = self.queue.0;
                ((*(*queue).ops).read)(queue, entries.as_mut_ptr().cast(), BATCH)
            };
            let count = match read {
                read if read > 0 => read as usize,
                read if read == -(libc::EAGAIN as isize) || read == 0 => return Ok(()),
                read if read == -ffi::FI_EAVAIL => return Err(self.failure()),
                read => {
                    let reason = self.library.describe(read as c_int);
                    return Err(FabricError::new("fi_cq_read", reason));
                }
            };
            for entry in &entries[..count] {
                completions.push(match entry.flags & ffi::FI_REMOTE_CQ_DATA != 0 {
                    true => Completion::Arrived(entry.data as u32),
                    false => Completion::Written(self.context_of(entry.op_context)),
                });
            }
            if count < BATCH {
                break;
            }
        }
        Ok(())
    }

    fn arm(&mut self) -> bool {
        if self.event_fd.is_none() {
            return true;
        }
        let mut fids = [self.queue.fid()];
        // SAFETY: both are open.
        let code =
            unsafe { ((*(*self.fabric.0).ops).trywait)(self.fabric.0, fids.as_mut_ptr(), 1) };
        code == 0
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.event_fd
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

impl LibfabricEndpoint {
    /// Registers memory.
    ///
    /// # Safety
    /// The bytes must stay until the registration is closed.
    unsafe fn registration(
        &mut self,
        start: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Object<ffi::fid_mr>, FabricError> {
        let (mode, key_bytes) = self.mode();
        let access = match access {
            Access::Source => ffi::FI_WRITE,
            Access::Target => ffi::FI_REMOTE_WRITE,
        };
        // Hard to guess, where the provider lets us choose it.
        let mut key = [0; 8];
        getrandom::fill(&mut key[..key_bytes.min(8)])
            .map_err(|error| FabricError::new("make a key", error.to_string()))?;
        let mut registration = ptr::null_mut();
        // SAFETY: the domain is open; the caller promises that the bytes stay.
        unsafe {
            let code = ((*(*self.domain.0).mr).reg)(
                self.domain.fid(),
                start.cast(),
                len,
                access,
                0,
                u64::from_le_bytes(key),
                0,
                &raw mut registration,
                ptr::null_mut(),
            );
            let refused = |reason: String| {
                let hint = match code.abs() {
                    libc::ENOMEM | libc::EPERM => {
                        ": raise the limit of locked memory (`ulimit -l`)"
                    }
                    _ => "",
                };
                FabricError::new("fi_mr_reg", format!("{reason} ({len} bytes){hint}"))
            };
            self.library.check("fi_mr_reg", code).map_err(|error| refused(error.reason))?;
            let registration = Object(registration);
            if mode & ffi::FI_MR_ENDPOINT != 0 {
                let ops = &*(*registration.fid()).ops;
                let code = (ops.bind)(registration.fid(), self.endpoint.fid(), 0);
                self.library.check("fi_mr_bind", code)?;
                let code = (ops.control)(registration.fid(), ffi::FI_ENABLE, ptr::null_mut());
                self.library.check("fi_mr_enable", code)?;
            }
            self.counts.registrations += 1;
            Ok(registration)
        }
    }

    /// Registers a part of a region once more, for one write.
    pub(super) fn register_again(
        &mut self,
        region: RegionId,
        at: usize,
        len: usize,
    ) -> Result<Object<ffi::fid_mr>, FabricError> {
        let pages = &self.regions[region.0].pages;
        assert!(at + len <= pages.len(), "no such bytes");
        // SAFETY: a region stays as long as the endpoint, to which what is returned belongs.
        unsafe {
            let start = pages.start().add(at);
            self.registration(start, len, Access::Source)
        }
    }

    /// As [`post`](PlacedWrites::post), perhaps by another registration of the same bytes.
    pub(super) fn post_by(
        &mut self,
        write: &Write<'_>,
        registration: Option<&Object<ffi::fid_mr>>,
    ) -> Result<Posted, FabricError> {
        let Write { from, segments, to, offset, immediate, context } = *write;
        let Region { registration: own, pages } = &self.regions[from.0];
        let fits = |s: &Segment| s.at <= pages.len() && s.len <= pages.len() - s.at;
        assert!(segments.iter().all(fits), "no such bytes: {write:?}");
        let registration = registration.unwrap_or(own);
        let addr = to.address.wrapping_add(offset as u64);
        let context: *mut ffi::fi_context2 = &raw mut self.contexts[context as usize];
        // SAFETY: the bytes are in a registered region, which stays; the caller does not change
        // them, nor use the context again, before the write has completed; both outlive the
        // endpoint, which is closed first. What the calls are given beside lives until they return.
        let (call, code) = unsafe {
            let (ops, descriptor) = (&*(*self.endpoint.0).rma, (*registration.0).mem_desc);
            match segments {
                [Segment { at, len }] => {
                    let code = (ops.writedata)(
                        self.endpoint.0,
                        pages.start().add(*at).cast(),
                        *len,
                        descriptor,
                        u64::from(immediate),
                        self.peer,
                        addr,
                        to.key,
                        context.cast(),
                    );
                    ("fi_writedata", code)
                }
                segments => {
                    let pieces: Vec<_> = segments
                        .iter()
                        .map(|segment| libc::iovec {
                            iov_base: pages.start().add(segment.at).cast(),
                            iov_len: segment.len,
                        })
                        .collect();
                    let mut descriptors = vec![descriptor; pieces.len()];
                    let target = ffi::fi_rma_iov { addr, len: write.bytes(), key: to.key };
                    let message = ffi::fi_msg_rma {
                        msg_iov: pieces.as_ptr(),
                        desc: descriptors.as_mut_ptr(),
                        iov_count: pieces.len(),
                        addr: self.peer,
                        rma_iov: &raw const target,
                        rma_iov_count: 1,
                        context: context.cast(),
                        data: u64::from(immediate),
                    };
                    let code =
                        (ops.writemsg)(self.endpoint.0, &raw const message, ffi::FI_REMOTE_CQ_DATA);
                    ("fi_writemsg", code)
                }
            }
        };
        match code {
            0 => {
                self.counts.writes += 1;
                self.counts.segments += segments.len() as u64;
                self.counts.bytes += write.bytes() as u64;
                Ok(Posted::Posted)
            }
            code if code == -(libc::EAGAIN as isize) => Ok(Posted::Full),
            code => Err(FabricError::new(call, self.library.describe(code as c_int))),
        }
    }

    /// Which of the contexts a pointer is to.
    fn context_of(&self, pointer: *mut c_void) -> u32 {
        let distance = pointer as usize - self.contexts.as_ptr() as usize;
        (distance / size_of::<ffi::fi_context2>()) as u32
    }
}
