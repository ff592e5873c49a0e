# SPDX-License-Identifier: Apache-2.0
# How a test is declared.
#
#   weft_add_test(NAME SOURCES file... [LABELS label...] [TIMEOUT seconds] [LIBRARIES target...]
#                 [ENVIRONMENT "X=y"...] [SHARED])
#       One cmocka program and one ctest entry. It is linked with libweft.a, so it may call what
#       the headers of core/ declare; SHARED: with libweft.so, so only what is public.
#
#   weft_add_test_library(NAME SOURCES file...)
#       What several test programs share, compiled once; they name it under LIBRARIES.
#
#   weft_add_contract_test(FILE [LIBRARIES target...] [LABELS ...] [TIMEOUT ...] [HIDDEN])
#       tests/contract/FILE.c, once for each built transport and GPU backend: contract.FILE.tcp.host
#       and, under the fault decorator with reordering, contract.FILE.tcp.host.fault; with HIDDEN
#       also contract.FILE.tcp.host.hidden, where the nic lacks what core can emulate. The program
#       reads WEFT_TEST_TRANSPORT, WEFT_TEST_GPU, WEFT_TEST_FAULT and WEFT_TEST_NO_SKIP.
#
#   weft_add_fake_verbs_test(FILE [VARIANT name] [SETTINGS text] [LIBRARY target] [LABELS ...]
#                            [TIMEOUT seconds])
#       The program of weft_add_contract_test for verbs over the fake libibverbs, which has no way
#       to another process: only the cases of one. contract.FILE.fakeverbs.host[.VARIANT], on
#       devices as FAKE_VERBS says (tests/fake/ibverbs/README.md); misuse that the fake notices
#       fails it.
#
#   weft_add_efa_test(FILE [LONG] [LABELS ...])
#       The program of weft_add_contract_test for efa over libfabric's providers in software, each with
#       its own oddities: contract.FILE.efa.shm, .tcp_rxm, .udp_rxd. None may skip. LONG: the last two, which are
#       slow, have the label long, and are for .ci/run.
#
#   weft_add_efa_double_test(FILE [LABELS ...])
#       The same over a libfabric that is worse than the real one (tests/fake/fabric/README.md), with the name
#       and the attributes of EFA: contract.FILE.efa.double.
#
#   weft_add_gpu_test(FILE)
#       tests/contract/FILE.c, once for each built GPU backend: contract.FILE.host.
#
#   weft_add_gpu_memory_test(FILE TRANSPORT GPU MEMORY [NAME text] [LABELS ...] [ENVIRONMENT "X=y"...])
#       The program of weft_add_contract_test with memory of GPUs, as helpers.h has it for WEFT_TEST_MEMORY:
#       contract.FILE.TRANSPORT.GPU.MEMORY, or ...GPU.NAME.
#
#   weft_write_entries(FILE)
#       The entries of contract tests so far, for who starts them otherwise than ctest does
#       (tests/vm/suite). Lines of words: name, program, timeout, NAME=value...
#
# Labels that only the sanitizers' presets heed: variant, for what runs the code of another entry under other settings; alone,
# for what one thread does (TSan). By names, as few as can be: more than 9 pairs of parentheses are more than CMake's patterns
# have, and then ctest leaves out nothing.
#
# A test that exits with 77 is counted as skipped; it prints why. What needs no hardware may not
# skip: for local and tcp with host, 77 is a failure.

set(WEFT_TEST_TIMEOUT 180)
if(WEFT_SANITIZE)
    set(WEFT_TEST_TIMEOUT 360)
endif()
# Reorders and delays (microseconds) completions, and accepts one post of five only in part.
set(WEFT_TEST_FAULT "seed=1,reorder=8,delay=200,partial=20")
# The same, on a nic without the operations that core makes up for.
set(WEFT_TEST_HIDDEN "seed=2,reorder=8,delay=200,partial=20,hide=add64+write_imm+fence")
# Tests ask for more memory than there is, to see that it is an error. What crashes is the sanitizer's to report, since cmocka's
# handlers lose what happens in other threads than the test's. LeakSanitizer (clang 14) guesses where a library that was opened late, as
# libfabric is, has its thread-local memory, now and then at 0x47ee, and dies there: it is not to look (tests/lsan.supp).
set(sanitizers "allocator_may_return_null=1:handle_segv=2:handle_sigbus=2:handle_sigill=2:handle_sigfpe=2")
set(WEFT_TEST_ENVIRONMENT "ASAN_OPTIONS=${sanitizers}" "TSAN_OPTIONS=${sanitizers}"
    "LSAN_OPTIONS=use_tls=0:print_suppressions=0:suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp")

# What takes long and is the same whatever a nic lacks, and wherever the memory is that other cases move: not in variants.
set(WEFT_TEST_ONCE WEFT_TEST_CASE_NOT=more_than_4_gib_at_once)

function(weft__test_includes target)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests
                               ${PROJECT_SOURCE_DIR}/core ${PROJECT_SOURCE_DIR}/core/include
                               ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
endfunction()

function(weft_add_test_library name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
    add_library(${name} STATIC ${arg_SOURCES})
    weft__test_includes(${name})
    target_link_libraries(${name} PRIVATE weft_static PkgConfig::cmocka Threads::Threads)
endfunction()

function(weft__test_program target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SHARED" "" "SOURCES;LIBRARIES")
    add_executable(${target} ${arg_SOURCES})
    weft__test_includes(${target})
    set(library weft_static)
    if(arg_SHARED)
        set(library weft)
    endif()
    target_link_libraries(${target} PRIVATE ${library} ${arg_LIBRARIES} PkgConfig::cmocka
                          Threads::Threads)
endfunction()

function(weft__test_entry name target)
    cmake_parse_arguments(PARSE_ARGV 2 arg "" "TIMEOUT" "LABELS;ENVIRONMENT")
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT ${WEFT_TEST_TIMEOUT})
    endif()
    add_test(NAME ${name} COMMAND ${target})
    if(name MATCHES "^contract\\..*\\.(local|tcp)\\.host")
        list(APPEND arg_ENVIRONMENT WEFT_TEST_NO_SKIP=1)
    else()
        set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
    endif()
    set(environment ${WEFT_TEST_ENVIRONMENT} ${arg_ENVIRONMENT})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT}
                         LABELS "${arg_LABELS}" ENVIRONMENT "${environment}")
    if(name MATCHES "^contract\\.")
        list(JOIN environment " " words)
        set_property(GLOBAL APPEND_STRING PROPERTY WEFT_TEST_ENTRIES
                     "${name} ${target} ${arg_TIMEOUT} ${words}\n")
    endif()
endfunction()

function(weft_write_entries file)
    get_property(entries GLOBAL PROPERTY WEFT_TEST_ENTRIES)
    file(WRITE ${file} "${entries}")
endfunction()

function(weft_add_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SHARED" "TIMEOUT"
                          "SOURCES;LABELS;LIBRARIES;ENVIRONMENT")
    set(shared "")
    if(arg_SHARED)
        set(shared SHARED)
    endif()
    weft__test_program(${name} SOURCES ${arg_SOURCES} LIBRARIES ${arg_LIBRARIES} ${shared})
    weft__test_entry(${name} ${name} TIMEOUT ${arg_TIMEOUT} LABELS ${arg_LABELS}
                     ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()

function(weft_add_contract_test file)
    cmake_parse_arguments(PARSE_ARGV 1 arg "HIDDEN" "TIMEOUT" "LIBRARIES;LABELS")
    weft__test_program(contract_${file} SOURCES contract/${file}.c LIBRARIES ${arg_LIBRARIES})
    get_property(transports GLOBAL PROPERTY WEFT_TRANSPORT_TESTED)
    set(gpus host) # its memory is the host's, as all is that these tests move
    get_property(built GLOBAL PROPERTY WEFT_TRANSPORT_BUILT)
    foreach(transport IN LISTS transports)
        foreach(gpu IN LISTS gpus)
            set(name contract.${file}.${transport}.${gpu})
            set(pair WEFT_TEST_TRANSPORT=${transport} WEFT_TEST_GPU=${gpu})
            weft__test_entry(${name} contract_${file} TIMEOUT ${arg_TIMEOUT}
                             LABELS contract ${arg_LABELS} ENVIRONMENT ${pair})
            if(fault IN_LIST built AND arg_HIDDEN)
                weft__test_entry(${name}.hidden contract_${file} TIMEOUT ${arg_TIMEOUT}
                                 LABELS contract fault ${arg_LABELS}
                                 ENVIRONMENT ${pair} ${WEFT_TEST_ONCE} WEFT_TEST_FAULT=${WEFT_TEST_HIDDEN})
            endif()
            if(fault IN_LIST built)
                set(variant "") # .hidden has the same faults
                if(arg_HIDDEN)
                    set(variant variant)
                endif()
                weft__test_entry(${name}.fault contract_${file} TIMEOUT ${arg_TIMEOUT}
                                 LABELS contract fault ${variant} ${arg_LABELS}
                                 ENVIRONMENT ${pair} ${WEFT_TEST_ONCE} WEFT_TEST_FAULT=${WEFT_TEST_FAULT})
            endif()
        endforeach()
    endforeach()
endfunction()

function(weft_add_fake_verbs_test file)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "VARIANT;SETTINGS;LIBRARY;TIMEOUT" "LABELS")
    set(name contract.${file}.fakeverbs.host)
    set(library fake_ibverbs)
    if(arg_LIBRARY)
        set(library ${arg_LIBRARY})
    endif()
    set(settings strict=1)
    if(arg_VARIANT)
        string(APPEND name .${arg_VARIANT})
        list(APPEND arg_LABELS alone)
    endif()
    if(arg_SETTINGS)
        string(APPEND settings ,${arg_SETTINGS})
    endif()
    weft__test_entry(${name} contract_${file} TIMEOUT ${arg_TIMEOUT} LABELS contract fake ${arg_LABELS} ENVIRONMENT
                     WEFT_TEST_TRANSPORT=verbs WEFT_TEST_GPU=host WEFT_TEST_SIDE=one
                     WEFT_VERBS_LIBRARY=$<TARGET_FILE:${library}> FAKE_VERBS=${settings})
endfunction()

# ofi_rxm: less memory, which is written to, for each endpoint (64 MiB unless told otherwise), and a look at what
# connects each half millisecond, not ten.
set(WEFT_EFA_QUICK FI_OFI_RXM_MSG_RX_SIZE=256 FI_OFI_RXM_BUFFER_SIZE=4096 FI_OFI_RXM_EAGER_LIMIT=4096
    FI_OFI_RXM_CM_PROGRESS_INTERVAL=500)

# A provider's name has a semicolon, which is CMake's separator.
set(WEFT_EFA_shm shm)
set(WEFT_EFA_tcp_rxm "tcp\\;ofi_rxm")
set(WEFT_EFA_udp_rxd "udp\\;ofi_rxd")

# libfabric looks at no other providers, which takes up to a third of a test's processor time.
set(WEFT_EFA_ALONE_shm FI_PROVIDER=shm)
set(WEFT_EFA_ALONE_tcp_rxm FI_PROVIDER=tcp,ofi_rxm)
set(WEFT_EFA_ALONE_udp_rxd FI_PROVIDER=udp,ofi_rxd)

# A test of this name: a program over a provider.
function(weft_add_efa_entry name program provider)
    cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "LABELS;ENVIRONMENT")
    weft__test_entry(${name} ${program} TIMEOUT 360 LABELS efa ${provider} ${arg_LABELS} ENVIRONMENT
                     WEFT_TEST_TRANSPORT=efa WEFT_TEST_NO_SKIP=1
                     "WEFT_EFA_PROVIDER=${WEFT_EFA_${provider}}" ${WEFT_EFA_ALONE_${provider}} FI_TCP_IFACE=lo
                     FI_UDP_IFACE=lo ${WEFT_EFA_QUICK} ${arg_ENVIRONMENT})
endfunction()

function(weft_add_efa_test file)
    cmake_parse_arguments(PARSE_ARGV 1 arg "LONG" "" "LABELS")
    foreach(provider shm tcp_rxm udp_rxd)
        set(long "")
        if(arg_LONG AND NOT provider STREQUAL shm)
            set(long long)
        endif()
        weft_add_efa_entry(contract.${file}.efa.${provider} contract_${file} ${provider} LABELS contract ${long} ${arg_LABELS})
    endforeach()
endfunction()

# As over a provider that cannot wake who sleeps, as EFA's cannot.
function(weft_add_efa_polled_test file)
    weft_add_efa_entry(contract.${file}.efa.tcp_rxm.polled contract_${file} tcp_rxm LABELS contract
                       ENVIRONMENT WEFT_EFA_WAIT=0)
endfunction()

# With memory of GPUs that the provider does not reach, over the double of a GPU's driver.
function(weft_add_efa_gpu_test file provider)
    weft_add_efa_entry(contract.${file}.efa.${provider}.cuda.fake contract_${file} ${provider}
                    LABELS contract gpu fake long ENVIRONMENT WEFT_TEST_GPU=cuda WEFT_TEST_MEMORY=gpu0 ${WEFT_TEST_ONCE} WEFT_CUDA_LIBRARY=$<TARGET_FILE:fake_cuda>)
endfunction()

# Over a libfabric with the attributes of EFA, that does all it may. double: over shm; noread: without READ, called efa.
function(weft_add_efa_double_test double file)
    cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "LABELS")
    set(efa narrow=1,local=1,provkey=1)
    set(worse seed=1,hold=6,delay=4,eagain=30,fail=23)
    if(file STREQUAL "transport_sleep") # what is held goes out when its side polls, and here one only sleeps
        string(REPLACE "hold=6" "hold=0" worse ${worse})
    endif()
    if(double STREQUAL "noread")
        set(provider WEFT_EFA_PROVIDER=efa ${WEFT_EFA_ALONE_tcp_rxm})
        string(APPEND efa ,noread=1,as=efa,provider=tcp+ofi_rxm)
    else()
        set(provider WEFT_EFA_PROVIDER=shm ${WEFT_EFA_ALONE_shm})
        string(APPEND efa ,noinject=1)
    endif()
    weft__test_entry(contract.${file}.efa.${double} contract_${file} TIMEOUT 360
                     LABELS contract efa fake double ${arg_LABELS} ENVIRONMENT
                     WEFT_TEST_TRANSPORT=efa WEFT_TEST_GPU=host WEFT_TEST_NO_SKIP=1 FI_TCP_IFACE=lo
                     ${WEFT_EFA_QUICK} WEFT_EFA_LIBRARY=$<TARGET_FILE:fake_fabric> ${provider}
                     "FAKE_FABRIC=${efa},${worse}")
endfunction()

function(weft_add_gpu_test file)
    weft__test_program(contract_${file} SOURCES contract/${file}.c helpers.c memory.c driver.c)
    get_property(gpus GLOBAL PROPERTY WEFT_GPU_TESTED)
    foreach(gpu IN LISTS gpus)
        weft__test_entry(contract.${file}.${gpu} contract_${file} LABELS contract gpu
                         ENVIRONMENT WEFT_TEST_GPU=${gpu})
    endforeach()
endfunction()

function(weft_add_gpu_memory_test file transport gpu memory)
    cmake_parse_arguments(PARSE_ARGV 4 arg "" "NAME" "LABELS;ENVIRONMENT")
    set(name ${memory})
    if(arg_NAME)
        set(name ${arg_NAME})
    endif()
    weft__test_entry(contract.${file}.${transport}.${gpu}.${name} contract_${file} TIMEOUT 300
                     LABELS contract gpu endpoint ${arg_LABELS} ENVIRONMENT
                     WEFT_TEST_TRANSPORT=${transport} WEFT_TEST_GPU=${gpu} WEFT_TEST_MEMORY=${memory} ${WEFT_TEST_ONCE}
                     ${arg_ENVIRONMENT})
endfunction()
