# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests/vm/run: the kernel of the virtual machine, fetched from the distribution and
# unpacked into a cache, never installed; and the initial file system, made of busybox.
#
# The distributions' kernels for clouds have neither 9p nor rdma_rxe; the generic ones have both.

VM_PACKAGES=(qemu-system-x86_64:qemu-system-x86 busybox-static cpio:cpio modprobe:kmod xz:xz-utils
    ip:iproute2 rdma:iproute2)
# The newest of these that the distribution offers.
VM_KERNELS=(linux-image-6.12-amd64 linux-image-amd64)
# In this order of need; those they need come by themselves.
VM_BOOT_MODULES=(virtio_pci 9pnet_virtio 9p overlay)
vm_cache=${WEFT_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weft-vm}

vm_lacks()
{
    echo "tests/vm/run: cannot run here: $*" >&2
    return 1
}

# The package behind a name that always means the newest.
vm_kernel_package()
{
    local name package
    for name in "${VM_KERNELS[@]}"; do
        package=$(apt-cache depends "$name" 2>/dev/null |
            awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
        if [ -n "$package" ]; then
            echo "$package"
            return 0
        fi
    done
    return 1
}

# Download the newest kernel into this folder.
vm_download()
{
    local package
    package=$(vm_kernel_package) || return 1
    (cd "$1" && apt-get download -qq "$package") >&2
}

# Unpack the kernel at $vm_cache/root.
vm_fetch_kernel()
{
    local work
    work=$(mktemp -d "$vm_cache/fetch.XXXXXX")
    # lists of packages that are old, or not there, name kernels that are not there either
    if ! vm_download "$work" && ! { apt-get update -q >&2 && vm_download "$work"; }; then
        rm -rf "$work"
        vm_lacks "cannot download any of ${VM_KERNELS[*]}"
        return 1
    fi
    dpkg -x "$work"/linux-image-*.deb "$work/root" || return 1
    depmod -b "$work/root" "$(ls "$work/root/lib/modules")" || return 1
    rm -rf "$vm_cache/root"
    mv "$work/root" "$vm_cache/root"
    rm -rf "$work"
}

# The modules that a boot takes, uncompressed, in the order of loading: folder
vm_copy_modules()
{
    local module file name
    for module in "${VM_BOOT_MODULES[@]}"; do
        modprobe -d "$vm_cache/root" -S "$vm_release" --show-depends "$module"
    done 2>/dev/null | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
        name=$(basename "$file" .xz)
        case $file in *.xz) xz -dc "$file" ;; *) cat "$file" ;; esac >"$1/$name"
        echo "$name" >>"$1/order"
    done
    grep -q '^9p.ko' "$1/order" || vm_lacks "the kernel $vm_release has no 9p"
}

vm_make_initramfs()
{
    local work dir
    work=$(mktemp -d "$vm_cache/initramfs.XXXXXX")
    for dir in bin modules proc sys dev lower upper control root; do mkdir "$work/$dir"; done
    cp /bin/busybox "$work/bin/busybox"
    cp "$here/init" "$work/init"
    vm_copy_modules "$work/modules" || return 1
    (cd "$work" && find . | cpio --quiet -o -H newc) >"$vm_initramfs.new"
    mv "$vm_initramfs.new" "$vm_initramfs"
    rm -rf "$work"
}

vm_prepare()
{
    mkdir -p "$vm_cache"
    exec 9>"$vm_cache/lock"
    flock 9 # several at once: one installs and fetches, the others find it done
    (need_packages "${VM_PACKAGES[@]}" 9>&-) >&2 || return 1
    PATH=$PATH:/usr/sbin:/sbin
    [ -d "$vm_cache/root" ] || vm_fetch_kernel || return 1
    vm_release=$(ls "$vm_cache/root/lib/modules")
    vm_kernel=$vm_cache/root/boot/vmlinuz-$vm_release
    vm_modules=$vm_cache/root/lib/modules/$vm_release
    vm_initramfs=$vm_cache/initramfs-$(cat "$here/init" "$here/kernel.sh" | cksum | cut -d' ' -f1)
    [ -s "$vm_initramfs" ] || vm_make_initramfs || return 1
    exec 9>&-
}
