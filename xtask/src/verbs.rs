//! `cargo xtask verbs`: fabric's tests over RDMA verbs, on machines without RDMA.
//!
//! Boots Debian's kernel in an emulated machine (qemu without hardware help) that has soft-RoCE
//! cards and the host's own files, and runs the test programs that were built here in there: the
//! conformance suite, what is of verbs alone, and Mu with three replicas. It proves function, never
//! speed. Needs Debian and, to install qemu and to look at the kernel's package, root; where it
//! can't run it says why and is left out.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::debian;

#[derive(clap::Args)]
pub struct Arguments {
    /// Where the kernel and the images are kept for the next run.
    #[arg(long, default_value = "target/verbs")]
    folder: PathBuf,
    /// Give up after this many seconds in the emulated machine.
    #[arg(long, default_value_t = 900)]
    seconds: u32,
    /// Fail, instead of leaving it out, where it can't run.
    #[arg(long)]
    required: bool,
}

const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "busybox-static",
    "kmod",
    "cpio",
    "xz-utils",
    "iproute2",
    "rdma-core",
    "ibverbs-providers",
];
/// Names the newest kernel of its line; its flavour has soft-RoCE, the one for clouds does not.
const KERNEL: &str = "linux-image-6.12-amd64";
const MODULES: &[&str] = &[
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "veth",
    "bridge",
    "crc32_generic",
    "ib_core",
    "ib_uverbs",
    "rdma_rxe",
];
/// What of the kernel's package is unpacked.
const PARTS: &[&str] = &[
    "./boot/vmlinuz-*",
    "./lib/modules/*/modules.*",
    "./lib/modules/*/kernel/drivers/infiniband/core/*",
    "./lib/modules/*/kernel/drivers/infiniband/sw/*",
    "./lib/modules/*/kernel/drivers/virtio/*",
    "./lib/modules/*/kernel/drivers/net/*.ko*",
    "./lib/modules/*/kernel/fs/*",
    "./lib/modules/*/kernel/net/*",
    "./lib/modules/*/kernel/crypto/*",
    "./lib/modules/*/kernel/lib/*",
    "./lib/modules/*/kernel/arch/x86/*",
];
/// The test programs, with what each is told.
const TESTS: &[(&str, &str)] = &[
    ("conformance", "--color never --test-threads 1"),
    ("verbs", "--color never --test-threads 1 --nocapture"),
    ("replicated", ""),
];

/// Builds, boots, and reports.
pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let say = |text: &str| println!("[{:5.1} s] {text}", start.elapsed().as_secs_f64());
    if let Some(reason) = obstacle()? {
        ensure!(!arguments.required, "the tests over verbs can't run here: {reason}");
        println!("LEFT OUT: the tests over verbs can't run here: {reason}");
        return Ok(());
    }
    say("packages are there");
    let programs = build()?;
    say("tests are built");
    std::fs::create_dir_all(arguments.folder.join("work"))?;
    let folder = arguments.folder.canonicalize()?;
    let kernel = kernel(&folder)?;
    let initrd = initrd(&folder, &kernel)?;
    say("kernel and image are there");
    std::fs::write(folder.join("work/run.sh"), script(&programs)?)?;
    boot(&folder, &kernel, &initrd, arguments.seconds)?;
    say("the tests over verbs have passed");
    Ok(())
}

/// Why it can't run here, after what can be installed has been.
fn obstacle() -> Result<Option<String>> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Some("it needs Linux on x86-64".into()));
    }
    if let Some(reason) = debian::provide(PACKAGES)? {
        return Ok(Some(reason));
    }
    if depends()?.is_none()
        && let Some(reason) = debian::update()?
    {
        return Ok(Some(reason));
    }
    let kernel = depends()?;
    Ok(kernel.is_none().then(|| format!("apt knows no {KERNEL} (it is Debian 12's)")))
}

/// The package of the newest kernel, if apt knows one.
fn depends() -> Result<Option<String>> {
    let output = Command::new("apt-cache").args(["depends", KERNEL]).output();
    let text = String::from_utf8(output.context("cannot run apt-cache")?.stdout)?;
    let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(name.map(str::to_string))
}

/// Builds the tests; returns the programs' paths.
fn build() -> Result<Vec<PathBuf>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--package", "fabric", "--no-run", "--message-format", "json"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "the tests cannot be built");
    let messages = String::from_utf8(output.stdout)?;
    let messages: Vec<Value> =
        messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let program = |name: &str| {
        let found = messages
            .iter()
            .rev()
            .find(|message| message["executable"].is_string() && message["target"]["name"] == name);
        let path = found.and_then(|message| message["executable"].as_str());
        path.map(PathBuf::from).with_context(|| format!("cargo built no test {name}"))
    };
    TESTS.iter().map(|(name, _)| program(name)).collect()
}

/// What runs in the emulated machine.
fn script(programs: &[PathBuf]) -> Result<String> {
    let mut script = String::from(
        "cd /\n\
         export TMPDIR=/mnt PATH=/usr/sbin:/usr/bin:/sbin:/bin RUST_BACKTRACE=1\n\
         export FABRIC_CARDS=rx1,rx2,rx3 FABRIC_PORTS=p1,p2,p3\n\
         export FABRIC_ADDRESSES=10.8.0.1,10.8.0.2,10.8.0.3\n\
         failed=0\n",
    );
    for (program, (name, arguments)) in programs.iter().zip(TESTS) {
        let program = program.to_str().context("the target folder's name is no UTF-8")?;
        writeln!(script, "echo 'guest runs: {name}'")?;
        writeln!(script, "'{program}' {arguments} || failed=1")?;
    }
    script.push_str("exit $failed\n");
    Ok(script)
}

/// Downloads and unpacks the kernel, once.
fn kernel(folder: &Path) -> Result<PathBuf> {
    let package = depends()?.context("apt knows the kernel")?;
    let unpacked = folder.join(&package);
    if unpacked.join("boot").is_dir() {
        return Ok(unpacked);
    }
    let download = folder.join("download");
    if download.exists() {
        std::fs::remove_dir_all(&download)?; // of a run that was interrupted
    }
    std::fs::create_dir_all(&download)?;
    let mut apt = Command::new("apt-get");
    apt.args(["download", "-q", &package]).current_dir(&download);
    // Told by root, apt hands a download to a user who may not write here.
    apt.args(["-o", "APT::Sandbox::User=root"]).stdout(Stdio::null());
    ensure!(apt.status()?.success(), "apt-get cannot download {package}");
    let file = std::fs::read_dir(&download)?.next().context("nothing was downloaded")??.path();
    let partial = folder.join("partial");
    std::fs::create_dir_all(&partial)?;
    let mut archive =
        Command::new("dpkg").arg("--fsys-tarfile").arg(file).stdout(Stdio::piped()).spawn()?;
    let tar = Command::new("tar")
        .args(["-x", "--wildcards", "-C"])
        .arg(&partial)
        .args(PARTS)
        .stdin(archive.stdout.take().context("piped")?)
        .status()?;
    ensure!(archive.wait()?.success() && tar.success(), "the kernel cannot be unpacked");
    std::fs::rename(partial, &unpacked)?;
    std::fs::remove_dir_all(download)?;
    Ok(unpacked)
}

/// Makes the image that the machine boots from: busybox, the modules, and its first process.
fn initrd(folder: &Path, kernel: &Path) -> Result<PathBuf> {
    let version = only(&kernel.join("lib/modules"))?;
    let version = version.file_name().and_then(OsStr::to_str).context("a kernel has a version")?;
    if !kernel.join("lib/modules").join(version).join("modules.dep.bin").exists() {
        let status = Command::new("/sbin/depmod").arg("-b").arg(kernel).arg(version).status()?;
        ensure!(status.success(), "depmod fails");
    }
    let root = folder.join("initrd");
    if root.exists() {
        std::fs::remove_dir_all(&root)?;
    }
    for name in ["bin", "sbin", "proc", "sys", "dev", "host", "modules"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    std::fs::copy("/bin/busybox", root.join("bin/busybox"))?;
    let mut order = String::new();
    for module in MODULES {
        let output = Command::new("/sbin/modprobe")
            .args(["-S", version, "--show-depends", module, "-d"])
            .arg(kernel)
            .output()
            .context("cannot run modprobe")?;
        for line in String::from_utf8(output.stdout)?.lines() {
            let Some(path) = line.strip_prefix("insmod ") else { continue };
            let path = Path::new(path.trim());
            let name = path.file_name().and_then(OsStr::to_str).context("a module has a name")?;
            let name = name.trim_end_matches(".xz");
            if order.lines().any(|known| known == name) {
                continue;
            }
            writeln!(order, "{name}")?;
            let is_packed = path.extension().is_some_and(|ending| ending == "xz");
            let bytes = if is_packed { unpack(path)? } else { std::fs::read(path)? };
            std::fs::write(root.join("modules").join(name), bytes)?;
        }
    }
    ensure!(order.contains("rdma_rxe"), "the kernel has no soft-RoCE");
    std::fs::write(root.join("modules.order"), order)?;
    std::fs::write(root.join("init"), include_str!("verbs/guest.sh"))?;
    let status = Command::new("chmod").arg("+x").arg(root.join("init")).status()?;
    ensure!(status.success(), "chmod fails");
    let image = folder.join("initrd.cpio");
    let status = Command::new("sh")
        .args(["-c", "find . | cpio -o -H newc --quiet"])
        .current_dir(&root)
        .stdout(std::fs::File::create(&image)?)
        .status()?;
    ensure!(status.success(), "cpio fails");
    Ok(image)
}

fn unpack(path: &Path) -> Result<Vec<u8>> {
    let output = Command::new("xz").arg("-dc").arg(path).output().context("cannot run xz")?;
    ensure!(output.status.success(), "xz cannot unpack {}", path.display());
    Ok(output.stdout)
}

/// The only entry of a folder.
fn only(folder: &Path) -> Result<PathBuf> {
    let mut entries = std::fs::read_dir(folder)?;
    let first = entries.next().with_context(|| format!("{} is empty", folder.display()))??;
    ensure!(entries.next().is_none(), "{} has several entries", folder.display());
    Ok(first.path())
}

/// Boots, and passes on what the machine prints.
fn boot(folder: &Path, kernel: &Path, initrd: &Path, seconds: u32) -> Result<()> {
    let boot = std::fs::read_dir(kernel.join("boot"))?;
    let mut images = boot.filter_map(|entry| Some(entry.ok()?.path()));
    let image = images.find(|path| path.to_string_lossy().contains("vmlinuz"));
    let share = |path: &str, tag: &str, rest: &str| {
        format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{rest}")
    };
    let work = folder.join("work");
    let work = work.to_str().context("the folder's name is no UTF-8")?;
    let mut machine = Command::new("timeout")
        .arg(seconds.to_string())
        .arg("qemu-system-x86_64")
        .args(["-accel", "tcg,thread=multi", "-cpu", "qemu64", "-m", "1024", "-smp", "2"])
        .args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"])
        .args(["-nic", "none", "-append", "console=ttyS0 panic=-1 loglevel=3"])
        .args(["-virtfs", &share("/", "host", ",readonly=on")])
        .args(["-virtfs", &share(work, "work", "")])
        .arg("-kernel")
        .arg(image.context("the kernel has no image")?)
        .arg("-initrd")
        .arg(initrd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run qemu-system-x86_64")?;
    let serial = BufReader::new(machine.stdout.take().context("piped")?);
    let mut ended = None;
    for line in serial.split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_string();
        if let Some((_, code)) = line.split_once("guest ended: ") {
            ended = Some(code.to_string());
        }
        println!("{line}");
    }
    machine.wait()?;
    match ended.as_deref() {
        Some("0") => Ok(()),
        Some(_) => bail!("a test over verbs has failed"),
        None => bail!("the emulated machine ended before its tests (after {seconds} s?)"),
    }
}
