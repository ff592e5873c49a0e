# SPDX-License-Identifier: Apache-2.0
# How a backend (a folder under transports/ or gpu/) is declared, chosen and put into the table.
#
#   weft_add_backend(TRANSPORT|GPU NAME SOURCES file... [LIBRARIES target...]
#                    [HEADERS_FOUND variable PACKAGE "what to install" | OPTIONAL] [DECORATOR])
#
# DECORATOR: it wraps other backends; the contract suite has no runs of it alone.
# Without HEADERS_FOUND the backend needs nothing and is always built. With it, the variable says
# whether the vendor's headers are there, and, of find_path, where; then -DTRANSPORT / -DGPU decide: auto builds it if they
# are, a list that names it fails if they are not, a list that does not name it leaves it out. OPTIONAL: it needs no headers,
# and a list that does not name it leaves it out.
#
# Collected in global properties: WEFT_<KIND>_DECLARED, WEFT_<KIND>_BUILT and, less the decorators,
# WEFT_<KIND>_TESTED (names); WEFT_BACKEND_NOTES (lines of the summary table).

# A list may have commas, as lists of settings have.
string(REPLACE "," ";" TRANSPORT "${TRANSPORT}")
string(REPLACE "," ";" GPU "${GPU}")

# Backends of later versions: naming one says so instead of "unknown".
set(WEFT_LATER_TRANSPORT tcpx)
set(WEFT_LATER_GPU)

function(weft__note kind name text)
    string(LENGTH "${kind} ${name}" used)
    math(EXPR pad "24 - ${used}")
    string(REPEAT " " ${pad} spaces)
    set_property(GLOBAL APPEND PROPERTY WEFT_BACKEND_NOTES "${kind} ${name}${spaces}${text}")
endfunction()

# Sets `chosen` in the caller, to true or false; fails if the user asked for what cannot be built.
function(weft__choose kind name headers_found package)
    set(chosen TRUE PARENT_SCOPE)
    if(NOT headers_found)
        weft__note(${kind} ${name} "built (always)")
    elseif(NOT ${kind} STREQUAL "auto" AND NOT name IN_LIST ${kind})
        list(JOIN ${kind} "," asked)
        weft__note(${kind} ${name} "left out: not in -D${kind}=${asked}")
        set(chosen FALSE PARENT_SCOPE)
    elseif(${headers_found})
        weft__note(${kind} ${name} "built")
    elseif(${kind} STREQUAL "auto")
        weft__note(${kind} ${name} "left out: install ${package}")
        set(chosen FALSE PARENT_SCOPE)
    else()
        message(FATAL_ERROR "-D${kind}=${${kind}}: ${name} cannot be built, install ${package}")
    endif()
endfunction()

# Objects of libweft: weft_add_objects(TARGET SOURCES file... [LIBRARIES target...]). What backends of a kind share has a
# folder beside them, which they may include.
function(weft_add_objects target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
    add_library(${target} OBJECT ${arg_SOURCES})
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/core/include
                               ${PROJECT_SOURCE_DIR}/gpu ${PROJECT_SOURCE_DIR}/gpu/vendor
                               ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(${target} PRIVATE Threads::Threads ${arg_LIBRARIES})
    target_compile_options(${target} PRIVATE ${WEFT_WHOLE_FLAGS})
    set_property(GLOBAL APPEND PROPERTY WEFT_OBJECT_TARGETS ${target})
endfunction()

# A folder of headers that the user named has to be one: weft_check_include(VARIABLE HEADER), where find_path does not look.
function(weft_check_include variable header)
    if(${variable} AND NOT EXISTS "${${variable}}/${header}")
        message(FATAL_ERROR "-D${variable}=${${variable}}: there is no ${header}")
    endif()
endfunction()

function(weft_add_backend kind name)
    cmake_parse_arguments(PARSE_ARGV 2 arg "DECORATOR;OPTIONAL" "HEADERS_FOUND;PACKAGE" "SOURCES;LIBRARIES")
    set_property(GLOBAL APPEND PROPERTY WEFT_${kind}_DECLARED ${name})
    if(arg_OPTIONAL)
        set(needs_none TRUE)
        set(arg_HEADERS_FOUND needs_none)
    endif()
    weft__choose(${kind} ${name} "${arg_HEADERS_FOUND}" "${arg_PACKAGE}")
    if(NOT chosen)
        return()
    endif()
    string(TOLOWER weft_${kind}_${name} target)
    weft_add_objects(${target} SOURCES ${arg_SOURCES} LIBRARIES ${arg_LIBRARIES})
    if(arg_HEADERS_FOUND AND IS_DIRECTORY "${${arg_HEADERS_FOUND}}")
        target_include_directories(${target} SYSTEM PRIVATE ${${arg_HEADERS_FOUND}})
    endif()
    set_property(GLOBAL APPEND PROPERTY WEFT_${kind}_BUILT ${name})
    if(NOT arg_DECORATOR)
        set_property(GLOBAL APPEND PROPERTY WEFT_${kind}_TESTED ${name})
    endif()
endfunction()

# A backend as weft_<name>.so, found by WEFT_MODULE_PATH at run time:
#   weft_add_module(NAME SOURCES file... [LIBRARIES target...])
function(weft_add_module name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
    add_library(weft_module_${name} MODULE ${arg_SOURCES})
    set_target_properties(weft_module_${name} PROPERTIES PREFIX "" OUTPUT_NAME weft_${name})
    target_link_libraries(weft_module_${name} PRIVATE weft::weft ${arg_LIBRARIES})
endfunction()

function(weft__check_names kind)
    get_property(declared GLOBAL PROPERTY WEFT_${kind}_DECLARED)
    list(LENGTH ${kind} length)
    if(length EQUAL 0 OR ("auto" IN_LIST ${kind} AND length GREATER 1))
        message(FATAL_ERROR "-D${kind}=${${kind}}: this is neither auto alone nor a list of names")
    endif()
    foreach(name IN LISTS ${kind})
        if(name IN_LIST WEFT_LATER_${kind})
            message(FATAL_ERROR "-D${kind}=${${kind}}: ${name} is not part of this version")
        elseif(NOT name STREQUAL "auto" AND NOT name IN_LIST declared)
            list(JOIN declared ", " known)
            message(FATAL_ERROR
                    "-D${kind}=${${kind}}: there is no ${name}; this version has ${known}")
        endif()
    endforeach()
endfunction()

# Text that declares and lists the backends of one kind, in `text` of the caller.
function(weft__table kind type prefix array)
    get_property(built GLOBAL PROPERTY WEFT_${kind}_BUILT)
    set(declarations "")
    set(rows "")
    foreach(name IN LISTS built)
        string(APPEND declarations "extern const struct ${type} ${prefix}${name};\n")
        string(APPEND rows "    &${prefix}${name},\n")
    endforeach()
    set(text "${declarations}\nstatic const struct ${type} *const ${array}[] = {\n${rows}    NULL,\n};\n"
        PARENT_SCOPE)
endfunction()

# After all folders: check what the user asked for, write the table that core/registry.c includes,
# and set WEFT_OBJECTS, the objects that libweft is made of.
function(weft_finish_backends)
    weft__check_names(TRANSPORT)
    weft__check_names(GPU)
    weft__table(TRANSPORT weft_transport weft_transport_ weft__transports)
    set(transports "${text}")
    weft__table(GPU weft_gpu_backend weft_gpu_ weft__gpus)
    set(gpus "${text}")
    configure_file(${PROJECT_SOURCE_DIR}/cmake/backends.h.in
                   ${PROJECT_BINARY_DIR}/generated/backends.h @ONLY)
    get_property(targets GLOBAL PROPERTY WEFT_OBJECT_TARGETS)
    set(objects $<TARGET_OBJECTS:weft_core>)
    foreach(target IN LISTS targets)
        list(APPEND objects $<TARGET_OBJECTS:${target}>)
    endforeach()
    set(WEFT_OBJECTS ${objects} PARENT_SCOPE)
endfunction()

function(weft_print_summary)
    get_property(notes GLOBAL PROPERTY WEFT_BACKEND_NOTES)
    message(STATUS "")
    message(STATUS "weft ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_C_COMPILER_ID} "
                   "${CMAKE_C_COMPILER_VERSION} ${WEFT_SANITIZE}")
    foreach(note IN LISTS notes)
        message(STATUS "  ${note}")
    endforeach()
    message(STATUS "  tests ${WEFT_BUILD_TESTS}, tools ${WEFT_BUILD_TOOLS}, "
                   "examples ${WEFT_BUILD_EXAMPLES}")
    message(STATUS "")
endfunction()
