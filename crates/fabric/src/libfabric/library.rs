//! The library itself: found at run time, never linked to, and asked what it has.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::IpAddr;
use std::ptr;
use std::sync::mpsc::channel;
use std::sync::{Once, OnceLock};
use std::thread;
use std::time::Duration;

use super::ffi;
use super::signals::keep_handlers;
use crate::contract::FabricError;

/// Its name since 2014; the functions in it have versions of their own.
const FILE: &CStr = c"libfabric.so.1";

/// Bits of an immediate that a provider must carry.
const IMMEDIATE_BYTES: usize = 4;

/// How long it may take to say what it has. It loads its providers when it is asked for the first
/// time, and these ask their drivers: 0.14 s without hardware. A driver that hangs never answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which network is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Choice {
    /// A provider by its name, or by that of its core, such as `verbs` for `verbs;ofi_rxm`.
    pub provider: Option<String>,
    /// A device, as the provider calls it.
    pub device: Option<String>,
}

/// A network that could be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its name, with those of the layers over it.
    pub name: String,
    /// The device, as it calls it.
    pub device: String,
    /// Bits a second, if it says.
    pub speed: Option<u64>,
    /// Whether it drives hardware that writes to memory itself.
    pub is_rdma: bool,
}

/// Why there is no network to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// This executable cannot load libraries.
    #[error(
        "this executable is statically linked and cannot load libfabric; `sumpter serve` of the \
         Python package can"
    )]
    Static,
    /// There is no library.
    #[error("libfabric is not installed (Debian, Ubuntu: `apt install libfabric1`): {0}")]
    Missing(String),
    /// It does not answer.
    #[error(
        "libfabric has not said in {} s which networks there are, so a driver may hang (`fi_info` \
         shows the same)",
        PATIENCE.as_secs()
    )]
    Silent,
    /// There is one that lacks a function, or the interface as it is used here.
    #[error("libfabric {version} lacks {lacks}; Sumpter needs libfabric 1.15 or newer")]
    Old {
        /// Its version.
        version: String,
        /// What it lacks.
        lacks: &'static str,
    },
    /// There is one whose functions do not say which version of them they are.
    #[error(
        "libfabric {version} was built without versions of its functions, so it is not known what \
         they expect; use one with them, such as that of the distribution (Debian, Ubuntu: `apt \
         install libfabric1`)"
    )]
    Unversioned {
        /// Its version.
        version: String,
    },
    /// It has nothing that fits.
    #[error("libfabric {version} has {wanted}; it has {has}")]
    None {
        /// Its version.
        version: String,
        /// What was looked for.
        wanted: String,
        /// What is there.
        has: String,
    },
}

/// Its functions.
#[derive(Debug)]
pub(super) struct Library {
    getinfo: ffi::getinfo,
    freeinfo: ffi::freeinfo,
    dupinfo: ffi::dupinfo,
    pub fabric: ffi::open_fabric,
    strerror: ffi::strerror,
    version: u32,
}

impl Library {
    /// The library of this process, loaded at the first call and never unloaded.
    pub(super) fn get() -> Result<&'static Library, Unavailable> {
        static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Library, Unavailable> {
        if cfg!(target_feature = "crt-static") {
            return Err(Unavailable::Static);
        }
        // SAFETY: the name is a string of C; loading runs the library's constructors, which look
        // for providers.
        let open = || unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = keep_handlers(open);
        if handle.is_null() {
            // SAFETY: dlopen has just failed, so there is a message.
            let reason = unsafe { text(libc::dlerror()) };
            return Err(Unavailable::Missing(reason));
        }
        let find = |name: &CStr, of: &CStr| {
            // SAFETY: both are strings of C, and the handle is open.
            unsafe { libc::dlvsym(handle, name.as_ptr(), of.as_ptr()) }
        };
        let is_versioned = !find(c"fi_version", c"FABRIC_1.0").is_null();
        // SAFETY: a string of C, and the handle is open; that is the type of fi_version(3), which
        // has not changed.
        let version = unsafe {
            let found = libc::dlsym(handle, c"fi_version".as_ptr());
            let found = (!found.is_null()).then_some(found);
            found.map_or(0, |found| std::mem::transmute::<*mut c_void, ffi::version>(found)())
        };
        if version != 0 && !is_versioned {
            return Err(Unavailable::Unversioned { version: words(version) });
        }
        let required = |name: &'static CStr, of: &CStr| {
            let found = find(name, of);
            let lacks = name.to_str().unwrap_or("a function");
            let old = Unavailable::Old { version: words(version), lacks };
            if found.is_null() { Err(old) } else { Ok(found) }
        };
        // SAFETY: these are the types of the functions in these versions of them.
        let library = unsafe {
            use std::mem::transmute;
            Library {
                getinfo: transmute::<*mut c_void, ffi::getinfo>(required(
                    c"fi_getinfo",
                    c"FABRIC_1.3",
                )?),
                freeinfo: transmute::<*mut c_void, ffi::freeinfo>(required(
                    c"fi_freeinfo",
                    c"FABRIC_1.3",
                )?),
                dupinfo: transmute::<*mut c_void, ffi::dupinfo>(required(
                    c"fi_dupinfo",
                    c"FABRIC_1.3",
                )?),
                fabric: transmute::<*mut c_void, ffi::open_fabric>(required(
                    c"fi_fabric",
                    c"FABRIC_1.1",
                )?),
                strerror: transmute::<*mut c_void, ffi::strerror>(required(
                    c"fi_strerror",
                    c"FABRIC_1.0",
                )?),
                version,
            }
        };
        // The functions have had their versions for longer than the library knows this request.
        if version < ffi::API_VERSION {
            let lacks = "version 1.15 of its interface";
            return Err(Unavailable::Old { version: words(version), lacks });
        }
        Ok(library)
    }

    /// What a call has returned, if that is an error.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), FabricError> {
        if code == 0 { Ok(()) } else { Err(FabricError::new(call, self.describe(code))) }
    }

    /// An error in words.
    pub(super) fn describe(&self, code: c_int) -> String {
        // SAFETY: it takes any number, and returns a string that stays.
        unsafe { text((self.strerror)(code.abs())) }
    }

    /// What fits, the best first: hardware before emulation, and of what `choice` names only that.
    pub(super) fn infos(
        &'static self,
        choice: &Choice,
        source: Option<IpAddr>,
    ) -> Result<Vec<Info>, Unavailable> {
        let all = self.ask(choice, source, Memory::Host);
        let mut fitting: Vec<Info> = all.into_iter().filter(|info| info.fits(choice)).collect();
        fitting.sort_by_key(Info::rank);
        if !fitting.is_empty() {
            return Ok(fitting);
        }
        let any = self.ask(&Choice::default(), None, Memory::Host);
        let mut has: Vec<String> = any.iter().map(|info| info.provider().name).collect();
        has.retain(|name| !is_layered_tcp(name));
        has.sort();
        has.dedup();
        let has = if has.is_empty() { "none at all".to_owned() } else { has.join(", ") };
        let wanted = match choice {
            Choice { provider: Some(name), device: Some(device) } => {
                format!(
                    "no provider `{name}` with a device `{device}` (fabric_provider, \
                         fabric_device)"
                )
            }
            Choice { provider: Some(name), .. } => {
                format!("no provider `{name}` (fabric_provider)")
            }
            Choice { device: Some(device), .. } => {
                format!("no device `{device}` (fabric_device)")
            }
            Choice { .. } => "no provider for placed writes".to_owned(),
        };
        Err(Unavailable::None { version: words(self.version), wanted, has })
    }

    /// All networks with reliable datagrams and placed writes.
    fn ask(&'static self, choice: &Choice, source: Option<IpAddr>, memory: Memory) -> Vec<Info> {
        // SAFETY: null asks for an empty one, all parts of which are there.
        let hints = unsafe { (self.dupinfo)(ptr::null()) };
        if hints.is_null() {
            return Vec::new();
        }
        // SAFETY: as above; the string is from malloc, as fi_freeinfo expects.
        unsafe {
            let info = &mut *hints;
            info.caps = ffi::FI_RMA;
            info.mode = ffi::FI_CONTEXT | ffi::FI_CONTEXT2;
            (*info.ep_attr).kind = ffi::FI_EP_RDM;
            let domain = &mut *info.domain_attr;
            domain.threading = ffi::FI_THREAD_DOMAIN;
            domain.resource_mgmt = ffi::FI_RM_ENABLED;
            domain.av_type = ffi::FI_AV_TABLE;
            domain.cq_data_size = IMMEDIATE_BYTES;
            domain.mr_mode = ffi::FI_MR_LOCAL
                | ffi::FI_MR_VIRT_ADDR
                | ffi::FI_MR_ALLOCATED
                | ffi::FI_MR_PROV_KEY
                | ffi::FI_MR_ENDPOINT;
            if memory == Memory::Device {
                info.caps |= ffi::FI_HMEM;
                (*info.domain_attr).mr_mode |= ffi::FI_MR_HMEM;
            }
            let domain = &mut *info.domain_attr;
            if let Some(name) = choice.device.as_deref().and_then(|name| CString::new(name).ok()) {
                domain.name = libc::strdup(name.as_ptr());
            }
        }
        // The provider that joins processes of one machine has no addresses of networks.
        let node = source.filter(|_| choice.provider.as_deref() != Some("shm"));
        let node = node.and_then(|ip| CString::new(ip.to_string()).ok());
        let flags = if node.is_some() { ffi::FI_SOURCE | ffi::FI_NUMERICHOST } else { 0 };
        let node = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
        let mut list = ptr::null_mut();
        let mut get = || {
            // SAFETY: strings of C or null, hints from fi_dupinfo, and a place for the answer.
            unsafe {
                (self.getinfo)(ffi::API_VERSION, node, ptr::null(), flags, hints, &raw mut list)
            }
        };
        // The first call loads what providers have libraries of their own.
        static FIRST: Once = Once::new();
        let mut code = None;
        FIRST.call_once(|| code = Some(keep_handlers(&mut get)));
        let code = code.unwrap_or_else(get);
        // SAFETY: made by fi_dupinfo.
        unsafe { (self.freeinfo)(hints) };
        if code != 0 || list.is_null() {
            return Vec::new();
        }
        let mut infos = Vec::new();
        let mut next = list;
        while !next.is_null() {
            // SAFETY: an entry of the list, which is there until it is freed.
            unsafe {
                let copy = (self.dupinfo)(next);
                if !copy.is_null() {
                    infos.push(Info { library: self, info: copy });
                }
                next = (*next).next;
            }
        }
        // SAFETY: made by fi_getinfo, and not used any more.
        unsafe { (self.freeinfo)(list) };
        infos
    }
}

/// Where the memory is that is to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Host,
    /// Of an accelerator, such as a GPU.
    Device,
}

/// The description of a network, of a kind that fits our request.
#[derive(Debug)]
pub(super) struct Info {
    library: &'static Library,
    pub info: *mut ffi::fi_info,
}

// SAFETY: plain memory of the library's without thread affinity, which this alone owns.
unsafe impl Send for Info {}

impl Info {
    pub(super) fn provider(&self) -> Provider {
        // SAFETY: what fi_getinfo returns has all parts; strings may be null.
        unsafe {
            let info = &*self.info;
            let nic = info.nic.as_ref();
            let speed = nic.and_then(|nic| nic.link_attr.as_ref()).map(|link| link.speed as u64);
            let name = text((*info.fabric_attr).prov_name);
            let device = text((*info.domain_attr).name);
            let is_rdma = is_rdma(&name);
            Provider { name, device, speed: speed.filter(|speed| *speed > 0), is_rdma }
        }
    }

    /// What a peer must share: writes of another protocol do not arrive.
    pub(super) fn protocol(&self) -> String {
        // SAFETY: as above.
        let attr = unsafe { &*(*self.info).ep_attr };
        format!("{}/{}.{}", self.provider().name, attr.protocol, attr.protocol_version)
    }

    fn fits(&self, choice: &Choice) -> bool {
        let Provider { name, device, .. } = self.provider();
        let named = |wanted: &String| {
            // What is `tcp` from libfabric 1.18 on was called `net` before.
            *wanted == name
                || Some(wanted.as_str()) == core(&name)
                || wanted == "tcp" && name == "net"
        };
        !is_layered_tcp(&name)
            && choice.provider.as_ref().map_or(!is_unfit(&name), named)
            && choice.device.as_ref().is_none_or(|wanted| *wanted == device)
    }

    /// The lower the better.
    fn rank(&self) -> (usize, usize) {
        let name = self.provider().name;
        let order = ["efa", "cxi", "opx", "verbs", "psm3", "psm2", "tcp"];
        let name = if name == "net" { "tcp".to_owned() } else { name };
        let position = |wanted: &&str| Some(*wanted) == core(&name);
        // A provider of its own before one made of layers.
        (order.iter().position(position).unwrap_or(order.len()), name.len())
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: made by fi_dupinfo, and dropped once.
        unsafe { (self.library.freeinfo)(self.info) };
    }
}

/// The innermost of a provider's layers.
fn core(name: &str) -> Option<&str> {
    name.split(';').next()
}

/// Whether a provider's device writes to memory itself.
fn is_rdma(name: &str) -> bool {
    matches!(core(name), Some("efa" | "cxi" | "opx" | "verbs" | "psm2" | "psm3"))
}

/// Whether a provider is taken only by its name: those for one machine, for tests, and those that
/// are retired.
fn is_unfit(name: &str) -> bool {
    matches!(core(name), Some("shm" | "sm2" | "udp" | "sockets" | "lnx" | "usnic"))
        || name.contains("ofi_rxd")
}

/// Whether a provider makes reliable datagrams from TCP connections by a layer that does not bear
/// what we ask of it: in libfabric 1.17 it ends the process with a segmentation fault after a
/// connection was reset, in 1.20 the descriptor of its completion queue stays silent while writes
/// arrive. `tcp` itself (`net` before 1.18) has what is needed.
fn is_layered_tcp(name: &str) -> bool {
    matches!(core(name), Some("tcp" | "net")) && name.contains(';')
}

/// Those of `choice` that can register memory of accelerators, such as GPUs (`FI_HMEM`), as
/// libfabric says; whether they have a device and a driver for it shows only when they do. Jobs
/// place host memory only.
///
/// # Errors
/// [`Unavailable`] if there is no library.
pub fn device_memory_providers(choice: &Choice) -> Result<Vec<Provider>, Unavailable> {
    let choice = choice.clone();
    in_time(move || {
        let infos = Library::get()?.ask(&choice, None, Memory::Device);
        let fitting = infos.iter().filter(|info| info.fits(&choice));
        let mut providers: Vec<Provider> = fitting.map(Info::provider).collect();
        providers.dedup();
        Ok(providers)
    })
}

/// What libfabric has for `choice`, the best first.
///
/// # Errors
/// [`Unavailable`] if that is nothing, or it does not answer in time.
pub fn providers(choice: &Choice) -> Result<Vec<Provider>, Unavailable> {
    let choice = choice.clone();
    in_time(move || {
        let infos = Library::get()?.infos(&choice, None)?;
        let mut providers: Vec<Provider> = Vec::new();
        for provider in infos.iter().map(Info::provider) {
            if !providers.contains(&provider) {
                providers.push(provider);
            }
        }
        Ok(providers)
    })
}

/// What the library answers to a question that may never end: the thread that asks is left behind
/// then.
fn in_time<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, Unavailable> + Send + 'static,
) -> Result<T, Unavailable> {
    let (sender, answer) = channel();
    let asking = move || drop(sender.send(ask()));
    match thread::Builder::new().name("sumpter-fabric".to_owned()).spawn(asking) {
        Ok(_) => answer.recv_timeout(PATIENCE).unwrap_or(Err(Unavailable::Silent)),
        Err(_) => Err(Unavailable::Silent),
    }
}

/// The version of the library.
///
/// # Errors
/// [`Unavailable`] if there is none.
pub fn version() -> Result<String, Unavailable> {
    in_time(|| Library::get().map(|library| words(library.version)))
}

fn words(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

/// A string of C's, or nothing.
///
/// # Safety
/// It is one, or null.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: by contract.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
